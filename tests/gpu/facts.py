"""Where the check ran: machine, commit and packages, and which packages are missing."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.util import find_spec

from tests.gpu.gpu_states import chosen
from tests.gpu.places import GPU, Place
from tests.gpu.processes import ROOT

NEEDED = (
    "click", "cupy", "lap", "lark", "ml_dtypes", "msgspec", "numpy", "threadpoolctl", "torch", "triton",
)  # fmt: skip
"""Modules without which nothing can be checked. Of what einc needs beside them, highspy serves the synthesis of
exchanges, msgpack writes plans to files, and rich shows progress; the check does nothing of this."""
FOR_GPUS = ("cupy", "triton")
"""A rehearsal does without them."""


def missing(place: Place = GPU) -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None and not (place.rehearsal and name in FOR_GPUS)]


def facts() -> dict[str, str]:
    """Where the check ran."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(*names: str) -> str:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "none"

    def said(*command: str) -> str:
        try:
            found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
        return found.splitlines()[0] if found else "unknown"

    packages = {
        "torch": installed("torch"),
        "triton": installed("triton"),
        "cupy": installed("cupy-cuda12x", "cupy-cuda13x", "cupy"),
        "jax": installed("jax"),
        "flash-attn": installed("flash-attn"),
        "numpy": installed("numpy"),
        "cuBLAS": installed("nvidia-cublas", "nvidia-cublas-cu12"),
        "cuDNN": installed("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": said("git", "rev-parse", "--short", "HEAD"),
        "GPU, memory, driver": said(
            "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader", *chosen()
        ),
        "power limit, highest clocks, MIG": said(
            "nvidia-smi",
            "--query-gpu=power.limit,clocks.max.sm,clocks.max.mem,mig.mode.current",
            "--format=csv,noheader",
            *chosen(),
        ),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {number}" for name, number in packages.items()),
    }
