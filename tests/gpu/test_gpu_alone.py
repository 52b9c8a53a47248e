"""`make gpu-check` where there is no GPU or no network: what it says, and the packages that it brings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.gpu import check as gpu_check
from tests.gpu import facts
from tests.gpu.places import CPU, GPU
from tests.gpu.records import record, timing
from tests.gpu.wheels import fits, unpack

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_gpu_it_says_so(capsys):
    assert gpu_check.main([]) == 69
    assert "no GPU" in capsys.readouterr().out


@pytest.mark.parametrize(("broken", "code"), [({}, 0), ({"same_bits": False}, 1)])
def test_the_page_is_written_and_the_exit_code_tells(broken, code, tmp_path, monkeypatch, capsys):
    page_file = tmp_path / "gpu-results.md"
    for stage in ("probe_all", "compile_kernels", "measure_ceilings", "sanitize"):
        monkeypatch.setattr(gpu_check, stage, lambda findings, *_: None)
    monkeypatch.setattr(gpu_check, "check_all", lambda findings, *_: findings.checks.append(record(**broken)))
    monkeypatch.setattr(gpu_check, "benchmark_all", lambda findings, *_: findings.benchmarks.append(timing()))
    assert gpu_check.run(GPU, None, page_file, 530) == code
    text = page_file.read_text()
    assert "## Correctness" in text
    assert "| LLaMA block, 8K tokens" in text
    assert "# Results on a GPU" in text
    assert "ended early" not in text
    assert text in capsys.readouterr().out
    raw = json.loads(page_file.with_suffix(".json").read_text())
    assert raw["benchmarks"][0]["samples"]["einc"] == [0.99, 1.0, 1.02]
    assert raw["facts"]["commit"]
    page_file.unlink()
    gpu_check.run(CPU, "correctness", None, 530)
    assert not page_file.exists()
    assert "# Rehearsal without a GPU" in capsys.readouterr().out


def test_it_runs_from_anywhere_beside_other_packages_of_its_names(tmp_path):
    for name in ("tests", "check", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('another package')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    script = str(ROOT / "tests" / "gpu")
    found = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (69, "")
    assert "no GPU" in found.stdout
    worker = [sys.executable, script, "worker", "correctness", str(len(GPU.runs()))]  # no case is left
    found = subprocess.run(worker, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lark-1.3.1-py3-none-any.whl", True),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl", True),
        ("msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-macosx_11_0_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_aarch64.whl", False),
        ("thing-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("thing-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("six-1.16.0-py2.py3-none-any.whl", True),
        ("nonsense.whl", False),
    ],
)
def test_wheels_that_fit(name, expected):
    assert fits(name, (3, 12), "x86_64") is expected


def test_wheels_are_unpacked(tmp_path):
    wheel = tmp_path / "onlyhere-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onlyhere/__init__.py", "VALUE = 5")
    assert unpack(tmp_path.glob("*.whl"), tmp_path / "site") == [wheel.name]
    assert (tmp_path / "site" / "onlyhere" / "__init__.py").read_text() == "VALUE = 5"


def test_the_check_begins_without_what_it_needs():
    """Packages that travel as wheels are found only after it has begun."""
    code = f"""
import sys
import tomllib
sys.path[:0] = ["."]
sys.modules.update(dict.fromkeys({facts.NEEDED}))
from tests.gpu import check, facts
assert check.missing() == list(facts.NEEDED)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_all_that_the_check_imports_is_named_as_needed():
    """Third-party modules that compiling, running and reporting load, apart from those of competitors."""
    code = """
import sys
import tomllib
sys.path[:0] = ["."]
from tests.gpu import worker, check
from tests.gpu.correctness import *
from tests.gpu.cases import CASES
case = next(c for c in CASES if c.name == 'llama' and c.dtype == 'bf16')
arrays = arrays_of(compiled(case, 4, 'bf16'))
reference(case, arrays)
files = {name.split('.')[0]: getattr(module, '__file__', '') or '' for name, module in list(sys.modules.items())}
found = {name for name, file in files.items() if 'site-packages' in file}
print(' '.join(sorted(found)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    unnamed = {name for name in found if name not in facts.NEEDED and not name.startswith(("_", "editables"))}
    assert unnamed <= {"regex", "typing_extensions"}, unnamed  # which are taken only where they are there


def test_the_wheels_are_all_that_einc_needs_but_what_comes_with_pytorch():
    makefile = (ROOT / "Makefile").read_text()
    wheels = set(re.search(r"^GPU_WHEELS := ((?:.*\\\n)*.*)$", makefile, re.M)[1].replace("\\", "").split())
    assert "nvidia-cudnn-frontend" in wheels
    wheels -= {"nvidia-cudnn-frontend"}  # for a probe, which does without
    projects = [tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "runtime")]
    wanted = {re.match(r"[\w-]+", line)[0] for project in projects for line in project["dependencies"]}
    there = {"numpy", "torch", "triton", "cupy", "typing_extensions"}  # the last one comes with PyTorch
    fast = {"llvmlite", "onednn-cpu-gomp"}  # kernels of the CPU are fast with them, and all works without
    assert wanted - there - fast - {"einc-runtime"} <= wheels
    modules = {"lapx": "lap"}
    assert set(facts.NEEDED) - there <= {modules.get(name, name) for name in wheels}
    linux = {"sys_platform": "linux", "platform_system": "Linux", "python_version": "3.12", "extra": ""}
    for name in wheels:
        needed = map(Requirement, metadata.requires(name) or ())
        names = {one.name.lower() for one in needed if one.marker is None or one.marker.evaluate(linux)}
        assert names <= wheels | there, name
    recipe = makefile[makefile.index("\ngpu-wheels:") :].split("\n\n")[0]
    assert recipe.splitlines()[-1].endswith('start there: $(GPU_PYTHON_BIN) tests/gpu"')
