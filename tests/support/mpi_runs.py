"""Commands on several ranks, over a real MPI, and what is left of them afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = next(
    (p for p in (Path(sys.executable).parent / "mpiexec", shutil.which("mpiexec")) if p and Path(p).exists()), None
)

LLAMA = {"n_layers": 2, "d_model": 48, "heads_q": 8, "heads_kv": 4, "d_head": 8, "d_ff": 40, "vocab": 70}
SMALL = {
    "bert": {"n_layers": 2, "batch": 3, "length": 7, "d_model": 16, "heads": 4, "d_ff": 24, "vocab": 50},
    "chain_a": {"scale": 512},
    "chain_b": {"scale": 512},
    "chain_c": {"scale": 512},
    "chain_d": {"scale": 512},
    "chain_e": {"scale": 512},
    "digits": {},
    "ffn": {"tokens": 24, "d_model": 40, "d_ff": 56},
    "llama": {"batch": 3, "length": 6, **LLAMA},
    "llama_block": {"d_model": 48, "heads_q": 8, "heads_kv": 4, "d_head": 8, "d_ff": 40, "seq_lens": "[9, 5]"},
    "llama_decode": {"batch": 3, "cache": 6, **LLAMA},
    "moe": {"tokens": 24, "d_model": 40, "d_ff": 56, "experts": 4},
}


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


def compile_small(name, folder):
    """A plan that exchanges data: by the paper's cost, small models are cut for all sites, too."""
    plan = folder / f"{name}.bin"
    words = [item for key, value in SMALL[name].items() for item in ("-D", f"{key}={value}")]
    how = ("-m", "dgx-a100", "--selector", "eindecomp", "--schedule", "synthesized", "--dtype", "f32")
    run(command("compile", ROOT / "models" / f"{name}.ein", *how, *words, "-o", plan))
    return plan


def list_left():
    """The segments of MPI's shared memory that no process has open or in its memory: those of programs that run beside
    the tests are none of their business."""
    names = {name for name in os.listdir("/dev/shm") if name.startswith(("mpich", "ucx", "psm", "vader"))}
    if names:  # of a program that ends by itself, the name is gone before its last process
        names -= list_used()
    return {name for name in names if Path("/dev/shm", name).exists()}


def list_used():
    """The segments that processes have open or in their memory."""
    used = set()
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):
            used.update(re.findall(r" /dev/shm/(\S+)$", (process / "maps").read_text(), re.MULTILINE))
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    used.add(os.path.basename(os.readlink(file)))
    return used


def processes_of(plan):
    """The processes that have this plan among their arguments."""
    process_ids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(plan).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                process_ids.append(int(entry.name))
        except OSError:
            continue
    return process_ids


def ranks_of(plan):
    """The ranks' processes, and not those that started them."""
    return [p for p in processes_of(plan) if b"PMI_RANK=" in Path(f"/proc/{p}/environ").read_bytes()]


def wait_for_tasks(folder):
    """Waits until every rank has begun a task, as the file says in which ranks say what they do."""
    limit = time.monotonic() + 60
    while not any(
        len(said) and said.min() >= 0
        for board in folder.glob("*/board")
        if (said := np.fromfile(board, np.int64).reshape(-1, 2)) is not None and said[:, 0].all()
    ):
        assert time.monotonic() < limit
        time.sleep(0.01)
