"""What surrounds the results of `make gpu-check`: where they are written, the GPU's state, its ceilings, sanitizers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.gpu import ceilings, gpu_states, jax_models, output, sanitizer, stages
from tests.gpu.findings import Findings
from tests.gpu.places import CPU, GPU
from tests.gpu.primitives import PEERS
from tests.gpu.records import record


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_page_that_cannot_be_written_goes_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OUT", raising=False)
    assert output.choose_file(tmp_path / "new" / "page.md") == tmp_path / "new" / "page.md"
    occupied = tmp_path / "file"
    occupied.write_text("no folder")  # where even root can write nothing
    found = output.choose_file(occupied / "page.md")
    assert found.name == "page.md"
    assert found.parent.is_dir()
    assert occupied not in found.parents
    assert f"{occupied / 'page.md'} cannot be written" in capsys.readouterr().out
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    assert output.choose_file(occupied / "page.md") == tmp_path / "out" / "page.md"
    output.write(tmp_path / "new" / "page.md", Findings([record()]), {"commit": "abc"}, 2.0)
    raw = json.loads((tmp_path / "new" / "page.json").read_text())
    assert raw["checks"][0]["error"] == 1e-3
    output.write(occupied / "page.md", Findings(), {}, 1.0)
    assert "the page was not written" in capsys.readouterr().out


def test_the_state_of_the_first_visible_gpu_is_asked_for(tmp_path, monkeypatch):
    program(tmp_path, "nvidia-smi", f'echo "$@" >> {tmp_path}/asked; echo "1980, 2619, 512.34, 61, 0x4"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    state = gpu_states.sample()
    assert state["clocks.sm"] == "1980"
    assert gpu_states.told(state) == "1980 MHz (memory 2619 MHz), 512.34 W, 61 C"
    assert "--id 3" in (tmp_path / "asked").read_text()
    program(tmp_path, "nvidia-smi", "exit 9")
    assert gpu_states.sample() == {}
    monkeypatch.setenv("PATH", "")
    assert gpu_states.told(gpu_states.sample()) == ""


@pytest.mark.parametrize(
    ("script", "status", "detail"),
    [
        ("echo '{\"position\": 3}'; echo '========= ERROR SUMMARY: 0 errors'", "ok", "ERROR SUMMARY: 0 errors"),
        ("echo '========= Invalid __global__ write of size 4'; exit 86", "failed", "Invalid __global__ write"),
        ("echo '========= Error: Device not supported'; exit 1", "unknown", "it could not run llama_block odd f32"),
        ("echo '========= nothing was run'", "unknown", "it could not run"),
    ],
)
def test_what_a_sanitizer_finds_fails_the_check_unlike_its_own_faults(script, status, detail, tmp_path, monkeypatch):
    program(tmp_path, "compute-sanitizer", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    findings = Findings([record()])
    sanitizer.sanitize(findings, GPU, 100)
    assert findings.sanitizer["status"] == status
    assert detail in findings.sanitizer["detail"]
    assert findings.passed == (status != "failed")
    program(tmp_path, "compute-sanitizer", "sleep 60 & sleep 60")
    monkeypatch.setattr(sanitizer, "LIMIT", 0.1)
    sanitizer.sanitize(findings, GPU, 100)
    assert findings.sanitizer["detail"] == "no answer in time"
    sanitizer.sanitize(findings, GPU, 5)
    assert findings.sanitizer["detail"] == "there was no time for it"
    monkeypatch.setenv("PATH", "")
    sanitizer.sanitize(findings, CPU, 100)
    assert findings.sanitizer["status"] == "absent"


def test_ceilings_are_measured_and_go_to_the_benchmarks():
    pytest.importorskip("torch")
    (found,) = ceilings.measure(CPU)
    own = ceilings.Ceilings(**found)
    assert own.bytes > 1e6
    assert own.operations > 1e5
    assert [float(one) for one in own.arguments] == pytest.approx([own.bytes, own.operations], rel=1e-5)


class OneRecord:
    def __init__(self, answer, *arguments):
        self.answer, self.arguments = answer, arguments

    def record(self, seconds):
        if self.answer is TimeoutError:
            raise TimeoutError
        return self.answer

    def end(self, patience=None):
        return 1, "CUDA error"


def test_ceilings_and_links_that_are_not_known_are_told():
    for answer, expected in (
        ({"bytes": 1.0, "operations": 2.0}, {"bytes": 1.0, "operations": 2.0}),
        (None, {"problem": "exit code 1, CUDA error"}),
        (TimeoutError, {"problem": "no answer in time"}),
    ):
        findings = Findings()
        stages.measure_ceilings(findings, lambda *arguments, answer=answer: OneRecord(answer, *arguments))
        assert findings.ceilings == expected
    findings = Findings()
    stages.measure_links(findings, replace(GPU, gpus=1), 1.0, lambda *_: OneRecord({"links": []}))
    stages.measure_links(findings, replace(GPU, gpus=2, broken=frozenset({PEERS})), 1.0, lambda *_: OneRecord({}))
    assert findings.links == {}
    stages.measure_links(findings, replace(GPU, gpus=2), 1.0, lambda *_: OneRecord(None))
    assert "CUDA error" in findings.links["problem"]


def test_a_step_of_decoding_in_pytorch_is_that_of_the_model():
    torch = pytest.importorskip("torch")
    from tests.gpu.cases import CASES
    from tests.gpu.correctness import arrays_of, compiled, largest_error, reference
    from tests.gpu.torch_models import given, model_of
    from tests.gpu.torch_models import reference as torch_reference

    case = next(case for case in CASES if case.name == "llama_decode")
    bundle = compiled(case, 1, "f32")
    arrays = arrays_of(bundle)
    last = np.full_like(arrays["positions"], 11)
    for positions in (arrays["positions"], last, last - [3, 0]):
        arrays["positions"] = positions
        found = torch_reference(bundle, arrays, "cpu")
        assert found.keys() == {"logits"}
        assert largest_error(found, {"logits": reference(case, arrays)["logits"]}) < 1e-9
    weights = given(bundle, arrays, torch.float64, "cpu")
    parts = []
    fast = model_of(bundle, lambda function: parts.append(function.__name__) or function)
    assert torch.equal(fast(weights), fast(weights))  # its token is in the caches already
    assert parts == ["before", "after", "last"]


def test_jax_knows_its_gpu_by_two_names(monkeypatch):
    def reached(*_):
        raise LookupError

    monkeypatch.setattr(jax_models, "_place", reached)
    for name, expected in (("gpu", LookupError), ("cuda", LookupError), ("cpu", ImportError)):
        fake = SimpleNamespace(default_backend=lambda name=name: name)
        monkeypatch.setitem(sys.modules, "jax", fake)
        with pytest.raises(expected):
            jax_models.prepared(None, {})
