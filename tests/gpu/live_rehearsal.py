"""`make gpu-check` from beginning to end without a GPU: workers, records, PyTorch on the CPU, and the page.

It takes PyTorch (`make test-reference`), and compiles some kernels where Triton is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.gpu.cases import BENCHMARKS, CASES
from tests.gpu.places import CPU

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
    require_correctness(text)
    require_speed(text, found.stdout)
    if find_spec("triton") is not None:
        require_kernels(text)


def require_correctness(text):
    """Every case that a CPU can do is right."""
    count = len(CPU.runs())
    assert count >= 25
    assert f"{count} of {count} plans are right" in text
    for number, _sites in CPU.runs():
        assert f"| {CASES[number].title} |" in text
    assert "took the process" not in text
    assert "not reached" not in text
    assert "ended early" not in text
    row = next(line for line in text.splitlines() if line.startswith("| llama_block odd f16 |"))
    assert re.search(r"\| 8: \S+e-04 \| \S+e-04 \|", row)  # PyTorch, too


def require_speed(text, printed):
    """Every benchmark is measured, and held against PyTorch's result."""
    for own in BENCHMARKS:
        cells = next(line for line in text.splitlines() if line.startswith(f"| {own.title} |")).split("|")[2:-1]
        ours, by_own, eager, fast, _jax, ratio, many, host, error = (cell.strip() for cell in cells)
        assert all(float(number) > 0 for number in (ours, eager, fast))
        assert bool(by_own) == (own.model == "llama_block")
        assert ratio
        assert many
        assert len(host.split(", ")) == 2
        assert 0 < float(error) < 2e-2
        assert f"  {own.title}: " in printed
        for whose in ("einc", "einc, 8 sites", "torch"):  # where the time goes
            assert f"\n{own.title}, {whose}:\n" in text
    assert "**wrong**" not in text
    assert "not in turns" not in text


def require_kernels(text):
    """Those of all plans are found, and some of them compiled."""
    found = re.search(r"\| kernels compiled before \| kernels: (\d+), compiled: (\d+), architecture: sm_90", text)
    assert found, text
    assert int(found[1]) > 300
    assert int(found[2]) == 6
