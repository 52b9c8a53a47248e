"""A program: hides what Linux alone has, imports all modules, and compiles, opens and runs a plan: for other systems.

    python -m tests.support.without_linux FOLDER

prints as JSON which modules need packages that are not installed, and what was looked for in vain. Third-party packages
are imported before anything is hidden, as there are builds of them for other systems.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import pkgutil
import platform
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import click
import highspy
import llvmlite.binding
import ml_dtypes
import msgspec
import numpy as np
import scipy.optimize
import threadpoolctl

ROOT = Path(__file__).parents[2]
PREPARED = (click, highspy, llvmlite.binding, ml_dtypes, msgspec, np, scipy.optimize, threadpoolctl, subprocess,
            urllib.request)  # fmt: skip
"""Modules with parts in C, which are made for a system."""

LINUX_ONLY = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_getscheduler", "sched_setscheduler", "memfd_create", "preadv",
        "pwritev", "posix_fadvise", "posix_fallocate", "copy_file_range", "splice", "pidfd_open", "eventfd", "getxattr",
        "setxattr", "O_TMPFILE", "O_PATH", "O_DIRECT", "O_LARGEFILE", "setns", "unshare", "getrandom", "sendfile",
        "process_cpu_count",
    ),
    mmap: ("MAP_POPULATE", "MAP_NORESERVE", "MAP_STACK", "MADV_HUGEPAGE", "MADV_DONTFORK", "MADV_REMOVE"),
    signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "sigwaitinfo", "sigtimedwait"),
}  # fmt: skip
"""Names of the standard library that macOS has not, or not in every version."""

LIBRARY_FUNCTIONS = frozenset((
    "getauxval", "prctl", "sched_getcpu", "sched_setaffinity", "syscall", "futex", "memfd_create", "malloc_trim",
    "mallopt", "mallinfo2", "gettid", "epoll_create1", "madvise64",
))  # fmt: skip
"""Functions of the C library of Linux that others have not."""

FOLDERS = ("/proc", "/sys", "/dev/shm")
OPENING = frozenset(("open", "os.listdir", "os.scandir"))
"""Events of the interpreter whose first argument is a path."""

OPTIONAL = frozenset((
    "cupy", "cupyx", "cuda", "cudnn", "triton", "torch", "mpi4py", "transformers", "flash_attn", "openai", "uvicorn",
    "starlette", "onnx", "jinja2", "tokenizers", "llguidance", "safetensors", "scipy", "sklearn",
    "flash_attn_interface",
))  # fmt: skip
"""Packages that einc imports where they are installed."""


class Hidden:
    """What was looked for although it is hidden, in the order of its first use."""

    def __init__(self) -> None:
        self.asked_for: dict[str, None] = {}

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuses folders and functions of Linux; threadpoolctl has a way of its own for each system."""
        if event in OPENING and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            if path.startswith(FOLDERS) and not is_called_by("threadpoolctl"):
                self.asked_for[path] = None
                raise FileNotFoundError(2, "hidden", path)
        elif event == "ctypes.dlsym" and arguments[1] in LIBRARY_FUNCTIONS:
            self.asked_for[arguments[1]] = None
            raise AttributeError(f"hidden: {arguments[1]}")


def is_called_by(module: str) -> bool:
    """Whether a function of this module is being called."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def hide() -> Hidden:
    """From here on, this process is on a system that calls itself darwin."""
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    hidden = Hidden()
    sys.addaudithook(hidden.audit)
    sys.platform = "darwin"
    platform.system = lambda: "Darwin"
    assert not hasattr(ctypes.CDLL(None), "getauxval")
    return hidden


def import_all(package: str) -> dict[str, str]:
    """Imports every module, and says which ones need a package that is not installed. Raises for any other error."""
    needed: dict[str, str] = {}
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            top = (error.name or "").partition(".")[0]
            if top not in OPTIONAL:
                raise
            needed[module.name] = top
    return needed


def run_plan(folder: Path) -> None:
    """Compiles a transformer for two sites of this computer, opens the plan, runs it with weights of a file, and holds
    the results against those of the model."""
    from einc.cli.main import main as run_einc
    from einc_runtime.execution.data.safetensors import write_tensors
    from einc_runtime.execution.data.weights import list_weights
    from einc_runtime.plan.codec import read_bundle

    plan, weights = folder / "plan.bin", folder / "weights.safetensors"
    small = ("-Dd_model=48", "-Dheads_q=6", "-Dheads_kv=2", "-Dd_head=8", "-Dd_ff=72", "-Dseq_lens=[11,5]")
    model = str(ROOT / "models" / "llama_block.ein")
    require(run_einc(["compile", model, "-m", "host", "--devices", "2", "--dtype", "f32", *small, "-o", str(plan)]))
    rng = np.random.default_rng(1)
    tensors = list_weights(read_bundle(plan))
    drawn = {tensor.stored or tensor.name: ("f32", rng.random(tensor.shape, np.float32)) for tensor in tensors}
    with weights.open("wb") as stream:
        write_tensors(stream, drawn)
    require(run_einc(["run", str(plan), "--inputs", "rand:0", "--weights", str(weights), "--check"]))


def require(code: int) -> None:
    if code:
        raise SystemExit(f"einc ended with {code}")


def main(folder: str) -> None:
    hidden = hide()
    needed = import_all("einc_runtime") | import_all("einc")
    run_plan(Path(folder))
    print(json.dumps({"needed": needed, "asked_for": list(hidden.asked_for)}))


if __name__ == "__main__":
    main(sys.argv[1])
