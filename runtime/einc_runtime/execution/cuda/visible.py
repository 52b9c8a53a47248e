"""Whether GPUs are visible: for the choice of a backend, at no cost where there are none."""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path

_DEVICE_FILES = ("nvidia[0-9]*", "dxg")
"""Under /dev: NVIDIA's, and that of Windows' subsystem for Linux."""


def gpus_visible(dev: Path = Path("/dev"), library: str = "libcuda.so.1") -> int:
    """How many GPUs CUDA's driver shows to this process; 0 without a look at the driver where no device file is."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "NoDevFiles"):
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


def cupy_installed() -> bool:
    return find_spec("cupy") is not None
