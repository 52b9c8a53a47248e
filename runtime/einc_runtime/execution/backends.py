"""Chooses the backend that runs a plan. On a machine without GPUs, finding out that there are none takes no time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from einc_runtime import environment
from einc_runtime.errors import MissingFault, PlanFault
from einc_runtime.installing import suggest_cuda
from einc_runtime.plan.schema import HOST, Bundle

if TYPE_CHECKING:
    from einc_runtime.execution.base import Executor
    from einc_runtime.execution.shared_buffers import SharedBuffers
    from einc_runtime.kernels.cuda.tuning import Tuning

BACKENDS = ("auto", "cpu", "cuda")

_DEVICE_FILES = ("nvidia[0-9]*", "dxg")
"""Under /dev: the files of NVIDIA's driver, and that of the Windows subsystem for Linux."""


def count_visible_gpus(dev: Path = Path("/dev"), library: str = "libcuda.so.1") -> int:
    """How many GPUs CUDA's driver shows to this process. Without a device file, the driver is not asked."""
    visible = environment.read(environment.VISIBLE_GPUS)
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return 0
    if not any(next(dev.glob(pattern), None) for pattern in _DEVICE_FILES):
        return 0
    try:
        driver = ctypes.CDLL(library)
        count = ctypes.c_int(0)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def is_cupy_installed() -> bool:
    return find_spec("cupy") is not None


def make_executor(
    bundle: Bundle,
    backend: str,
    devices: Sequence[int] | None,
    no_peer: str,
    tunings: Sequence[Tuning] = (),
    common: SharedBuffers | None = None,
    workers: int | None = None,
    kernel_folders: Sequence[Path] = (),
) -> Executor:
    """The executor of a backend; see `Session` for what the arguments mean."""
    if backend not in BACKENDS:
        raise MissingFault(f"there is no backend '{backend[:40]}'", hint=f"there are {', '.join(BACKENDS)}")
    if uses_gpus(bundle, backend):
        from einc_runtime.execution.cuda.executor import CudaExecutor

        return CudaExecutor(
            bundle, devices, no_peer=no_peer, tunings=tunings, kernel_folders=kernel_folders, common=common
        )
    from einc_runtime.execution.cpu.executor import CpuExecutor

    return CpuExecutor(bundle, workers, common=common)


def require_device_count(bundle: Bundle, devices: Sequence[int] | None) -> None:
    """Raises PlanFault where there is not one device for each site."""
    if devices is not None and len(devices) != len(bundle.memory):
        raise PlanFault(
            f"{len(devices)} devices are given for a plan of {len(bundle.memory)} sites",
            hint="one for each site; sites may share a device, as in 0,0,1,1",
        )


def note_unused_gpus(bundle: Bundle) -> str | None:
    """What to tell a user whose plan for GPUs runs on the CPU although GPUs are there."""
    if bundle.machine == HOST or not count_visible_gpus() or is_cupy_installed():
        return None
    return f"GPUs are visible here, but are not used without cupy: {suggest_cuda()}"


def uses_gpus(bundle: Bundle, backend: str) -> bool:
    """Whether a plan runs on GPUs with this backend; with auto, if it is for GPUs, and some can be used here."""
    if backend != "auto":
        return backend == "cuda"
    from einc_runtime.execution.cuda.hip_driver import has_amd_gpus

    return bundle.machine != HOST and (has_amd_gpus() or (count_visible_gpus() > 0 and is_cupy_installed()))
