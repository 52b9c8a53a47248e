"""`make gpu-check` from beginning to end without a GPU: workers, records, PyTorch on the CPU, and the page.

It takes PyTorch (`make test-reference`), and compiles some kernels where Triton is installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.cases import BENCHMARKS
from tests.gpu.layouts import Layout
from tests.gpu.places import CPU
from tests.gpu.primitives import DEVICES, TOLD
from tests.gpu.probe_worker import COPIES

ROOT = Path(__file__).resolve().parents[2]


def test_the_check_from_beginning_to_end(tmp_path):
    target = tmp_path / "some" / "page.md"
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "CUDA_VISIBLE_DEVICES": ""}
    command = [
        sys.executable,
        "-W",
        "error::DeprecationWarning:einc_runtime",
        str(ROOT / "tests" / "gpu"),
        "--rehearse",
    ]
    found = subprocess.run(
        [*command, "--output", str(target)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    bad = [line for line in found.stdout.splitlines() if re.search(r"\*\*|wrong|process with it|did not end", line)]
    assert found.returncode == 0, (bad, found.stderr)
    text = target.read_text()
    require_probes(text)
    require_correctness(text)
    require_speed(text, found.stdout)
    require_raw(target)
    if find_spec("triton") is not None:
        require_kernels(text)


def require_correctness(text):
    """Every case that a CPU can do is right."""
    count = len(CPU.runs())
    assert count >= 25
    assert f"{count} of {count} plans are right" in text
    for run in CPU.runs():
        assert f"| {run.case.title} |" in text
    assert {run.layout for run in CPU.runs()} == set(Layout)
    for title in {run.case.title for run in CPU.runs() if run.case.reproducible}:
        assert f"- {title}: the same bits on 1, 3 aliased, 8 aliased, 8 staged, 8 spread sites (" in text
    row = next(line for line in text.splitlines() if line.startswith("| chain_a odd f32 |"))
    assert re.search(r"\| 8: \S+, 8 aliased: \S+, 8 staged: \S+, 8 spread: \S+ \|", row)
    assert "took the process" not in text
    assert "not reached" not in text
    assert "ended early" not in text
    row = next(line for line in text.splitlines() if line.startswith("| llama_block odd f16 |"))
    assert re.search(r"\| 8: \S+e-04 / \S+e-04, 8 aliased: .* \| \S+e-04 \|", row)  # PyTorch, too


def require_probes(text):
    """Every primitive has a line; what the fake driver can do works, and what needs a GPU is not called working."""
    for name, told in TOLD.items():
        status = "ok" if name in (DEVICES, *COPIES) else "absent"
        assert f"| {told} | {status} |" in text
    assert re.search(r"\| 0, 1 \| 4096 \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \|", text)  # links
    assert "**failed**" not in text
    assert re.search(r"a kernel from (above )?\d+ bytes on. Plans leave rows below 128 bytes", text)


def require_raw(target):
    """All samples of every benchmark are beside the page."""
    raw = json.loads(target.with_suffix(".json").read_text())
    assert {own["name"] for own in raw["benchmarks"]} == {own.name for own in BENCHMARKS}
    for own in raw["benchmarks"]:
        assert own["samples"].keys() == own["ms"].keys()
        assert all(len(samples) == 2 for samples in own["samples"].values())


def require_speed(text, printed):
    """Every benchmark is measured, and held against PyTorch's result."""
    errors = []
    for own in BENCHMARKS:
        cells = next(line for line in text.splitlines() if line.startswith(f"| {own.title} |")).split("|")[2:-1]
        ours, tuned, by_own, eager, fast, _jax, ratio, many, host, error = (cell.strip() for cell in cells)
        assert all(re.fullmatch(r"[0-9.]+ \([0-9]+%\)", number) for number in (ours, eager, fast))
        assert all(float(number.split()[0]) > 0 for number in (ours, eager, fast))
        assert bool(by_own) == bool(tuned) == (own.model == "llama_block")
        assert len(ratio.split(", ")) == 1 + bool(tuned)
        assert bool(many) == own.many
        assert len(host.split(", ")) == (2 if own.many else 1)
        errors.append(float(error))
        assert f"  {own.title}: " in printed
        for whose in ("einc", "einc, 8 sites", "torch") if own.many else ("einc", "torch"):  # where the time goes
            assert f"\n{own.title}, {whose}:\n" in text
    assert min(errors) >= 0
    assert 0 < max(errors) < 2e-2  # products of small matrices may have the very bits of PyTorch's
    assert re.search(
        r"- einc, tuned: product [0-9x]+: [0-9.]+ -> [0-9.]+ ms, 2 ways|- einc, tuned: \d+ products in", text
    )
    assert "**wrong**" not in text
    assert "not in turns" not in text
    assert re.search(r"TB/s to and from memory .*, and \S+ TFLOP/s of products", text)
    for step in ("q", "a", "down"):
        assert re.search(rf"\| LLaMA block, 8K tokens \| {step} \| [0-9.]+ \| [0-9.]+ PyTorch's", text)


def require_kernels(text):
    """Those of all plans are found, and some of them compiled."""
    found = re.search(r"\| kernels compiled before \| kernels: (\d+), compiled: (\d+), architecture: sm_90", text)
    assert found, text
    assert int(found[1]) > 300
    assert int(found[2]) == 6
