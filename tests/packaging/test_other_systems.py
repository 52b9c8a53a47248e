"""What macOS has not is looked for with something in its place. There are no Macs to try it on here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from einc_runtime.execution.data.stored_arrays import StoredBytes

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hides what Linux has")
def test_all_modules_are_imported_and_a_plan_runs_without_what_linux_alone_has(tmp_path: Path) -> None:
    """`sched_getaffinity`, `preadv`, `/proc`, `/dev/shm`, functions of its C library, and so on."""
    command = [sys.executable, "-m", "tests.support.without_linux", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "as expected" in done.stdout
    (said,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert {"/proc/meminfo", "/proc/self/status"} <= set(said["asked_for"])  # so that what is hidden was hidden


def test_files_are_read_without_preadv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    monkeypatch.delattr(os, "preadv", raising=False)
    with path.open("rb") as stream:
        stored = StoredBytes(str(path), stream)
    assert bytes(stored.read(7, 31)) == bytes(range(7, 38))
