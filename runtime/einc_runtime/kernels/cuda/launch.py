"""The small part of CUDA's driver that compiled kernels need: modules, functions, launches, and memory for tables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.kernels.cuda.triton_compile import HIDDEN
from einc_runtime.kernels.gpu import Launch

STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without being allowed more."""

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class ModuleDriver(Protocol):
    """Works on the current device."""

    def use(self, device: int) -> None:
        """Makes a device current."""

    def load(self, code: bytes, function: str, shared: int) -> tuple[int, int]:
        """A module and its function, which may use so much dynamic shared memory."""

    def unload(self, module: int) -> None: ...

    def launch(self, function: int, grid: int, threads: int, shared: int, stream: int, parameters: int) -> None:
        """`parameters` is the address of an array of addresses of parameters."""

    def upload(self, data: bytes) -> int:
        """New device memory with this content."""

    def release(self, pointer: int) -> None: ...


class CupyModules:
    """`ModuleDriver` by cupy's thin bindings. Raises MissingFault where cupy is not installed."""

    def __init__(self) -> None:
        try:
            from cupy.cuda import driver, runtime
        except ImportError as error:
            hint = "pip install 'einc[cuda12]' (einc[cuda13] where the driver is for CUDA 13)"
            raise MissingFault("GPU kernels need cupy, which is not installed", hint=hint) from error
        self._driver: Any = driver
        self._runtime: Any = runtime

    def use(self, device: int) -> None:
        self._runtime.setDevice(device)

    def load(self, code: bytes, function: str, shared: int) -> tuple[int, int]:
        try:
            module = self._driver.moduleLoadData(code)
            found = self._driver.moduleGetFunction(module, function)
            if shared > STATIC_SHARED:
                self._driver.funcSetAttribute(found, _MAX_DYNAMIC_SHARED, shared)
        except self._driver.CUDADriverError as error:
            raise KernelFault(f"the kernel {function} cannot be loaded: {error}") from error
        return int(module), int(found)

    def unload(self, module: int) -> None:
        self._driver.moduleUnload(module)

    def launch(self, function: int, grid: int, threads: int, shared: int, stream: int, parameters: int) -> None:
        self._driver.launchKernel(function, grid, 1, 1, threads, 1, 1, shared, stream, parameters, 0)

    def upload(self, data: bytes) -> int:
        pointer = int(self._runtime.malloc(max(1, len(data))))
        held = ctypes.create_string_buffer(data, len(data))
        self._runtime.memcpy(pointer, ctypes.addressof(held), len(data), self._runtime.memcpyHostToDevice)
        self._runtime.streamSynchronize(0)  # our streams do not wait for the default one
        return pointer

    def release(self, pointer: int) -> None:
        self._runtime.free(pointer)


def launcher(
    driver: ModuleDriver, function: int, grid: int, warps: int, shared: int, pointers: Sequence[int]
) -> Launch:
    """A launch whose parameters are these pointers, and those that Triton adds, which are 0."""
    count = len(pointers) + HIDDEN
    values = (ctypes.c_uint64 * count)(*pointers, *[0] * HIDDEN)
    size = ctypes.sizeof(ctypes.c_uint64)
    addresses = (ctypes.c_uint64 * count)(*(ctypes.addressof(values) + size * n for n in range(count)))
    parameters, threads = ctypes.addressof(addresses), 32 * warps

    def launch(stream: int, _kept: object = (values, addresses)) -> None:
        driver.launch(function, grid, threads, shared, stream, parameters)

    return launch
