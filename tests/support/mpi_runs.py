"""Commands on several ranks, over a real MPI, and what is left of them afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = next(
    (p for p in (Path(sys.executable).parent / "mpiexec", shutil.which("mpiexec")) if p and Path(p).exists()), None
)


def require_mpi():
    assert find_spec("mpi4py") is not None, "there is no mpi4py: pip install '.[mpi]'"
    assert MPIEXEC is not None, "there is no mpiexec: pip install '.[mpi]'"


def command(*arguments):
    return [sys.executable, "-m", "einc", *map(str, arguments)]


def mpiexec(count, *arguments):
    return [str(MPIEXEC), "-n", str(count), *command(*arguments)]


def run(words, code=0):
    done = subprocess.run(words, capture_output=True, timeout=120, cwd=ROOT)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def list_shared():
    """The segments of shared memory that MPI's processes have made."""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "ucx", "psm", "vader")))


def processes_of(plan):
    """The processes that have this plan among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(plan).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def ranks_of(plan):
    """The ranks' processes, and not those that started them."""
    return [p for p in processes_of(plan) if b"PMI_RANK=" in Path(f"/proc/{p}/environ").read_bytes()]
