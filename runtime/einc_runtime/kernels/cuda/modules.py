"""Finds or compiles kernels, loads them and their tables when they are first bound, and launches them.

`ModuleDriver` is the small part of CUDA's driver that this needs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.installing import suggest_cuda
from einc_runtime.kernels.cuda import kernel_cache, triton_compile
from einc_runtime.kernels.cuda.triton_compile import HIDDEN, KernelBinary
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, GpuTarget, Launch
from einc_runtime.kernels.triton.launches import SCRATCH, Argument, KernelLaunch, KernelSource, StatusPointer, Table


class LoadedModules:
    """The kernels that are loaded on devices. `places` are directories with compiled kernels."""

    def __init__(self, places: Sequence[Path], driver: ModuleDriver) -> None:
        self.driver = driver
        self.compiler = triton_compile.version()
        self._places = tuple(places)
        self._binaries: dict[tuple[str, str], KernelBinary] = {}
        self._functions: dict[tuple[int, str], int] = {}
        self._loaded: list[tuple[int, int]] = []  # device and module
        self._tables: dict[tuple[int, bytes], int] = {}

    def binary(self, source: KernelSource, architecture: str) -> KernelBinary:
        """The compiled kernel. Raises MissingFault where there is none and no compiler, and KernelFault if compiling
        fails."""
        key = (source.key, architecture)
        if key not in self._binaries:
            self._binaries[key] = self._find_or_compile(source, architecture)
        return self._binaries[key]

    def launch(
        self, call: KernelLaunch, binary: KernelBinary, memory: int, status: int, target: GpuTarget, scratch: int = 0
    ) -> Launch:
        """A launch with its workspace and its status word; the device is current. `scratch` is the address of
        `scratch_size` bytes."""
        assert scratch or not binary.scratch, f"{call.source.name} needs scratch memory"
        key = (target.device, call.source.key)
        if key not in self._functions:
            module, function = self.driver.load(binary.code, binary.function, binary.shared)
            self._loaded.append((target.device, module))
            self._functions[key] = function
        pointers = [self._pointer(argument, memory, status, target) for argument in call.arguments]
        hidden = (scratch if binary.scratch else 0, *[0] * (HIDDEN - 1))
        return make_launch(
            self.driver, self._functions[key], call.grid, target.warp_size * binary.warps, binary.shared,
            (*pointers, *hidden),
        )  # fmt: skip

    def close(self) -> None:
        """Releases everything, also after errors, such as a lost device; raises the first error at the end."""
        with contextlib.ExitStack() as stack:
            while self._tables:
                (device, _), pointer = self._tables.popitem()
                stack.callback(self.driver.release, pointer)
                stack.callback(self.driver.use, device)
            while self._loaded:
                device, module = self._loaded.pop()
                stack.callback(self.driver.unload, module)
                stack.callback(self.driver.use, device)
            self._functions.clear()

    def _find_or_compile(self, source: KernelSource, architecture: str) -> KernelBinary:
        binary = kernel_cache.find(source, architecture, self._places, self.compiler)
        if binary is not None:
            return binary
        try:
            binary = triton_compile.compile_source(source, architecture)
        except MissingFault as fault:
            architectures = kernel_cache.list_architectures(source, self._places)
            if not architectures:
                raise
            message = (
                f"this plan's kernels are compiled for {', '.join(architectures)} only, and this is {architecture}"
            )
            raise MissingFault(message, hint=f"compile with --precompile {architecture}, or {fault.hint}") from None
        with contextlib.suppress(OSError):  # the kernel works without being cached
            kernel_cache.store(source, architecture, binary, kernel_cache.user_directory())
        return binary

    def _pointer(self, argument: Argument, memory: int, status: int, target: GpuTarget) -> int:
        if isinstance(argument, Table):
            key = (target.device, argument.data)
            if key not in self._tables:
                self._tables[key] = self.driver.upload(argument.data)
            return self._tables[key]
        return status if isinstance(argument, StatusPointer) else resolve_address(argument, memory)


def resolve_address(address: int, memory: int) -> int:
    """The real address of an argument, once the workspace is at `memory`."""
    return memory + address - SCRATCH if address >= SCRATCH else address


STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without an attribute that allows more."""

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class ModuleDriver(Protocol):
    """Modules, launches and memory of the current device."""

    def use(self, device: int) -> None:
        """Makes a device current."""

    def load(self, code: bytes, function: str, shared: int) -> tuple[int, int]:
        """A module and its function, which may use `shared` bytes of dynamic shared memory."""

    def unload(self, module: int) -> None: ...

    def launch(self, function: int, grid: int, threads: int, shared: int, stream: int, parameters: int) -> None:
        """`parameters` is the address of an array of addresses of parameters."""

    def upload(self, data: bytes) -> int:
        """Allocates device memory with this content."""

    def release(self, pointer: int) -> None: ...


class RuntimeModules:
    """`ModuleDriver` over bindings of a driver and of a runtime library by cupy's names, whose functions raise `error`.
    `has_attributes` says that a function needs one for more shared memory than STATIC_SHARED, as CUDA's do."""

    def __init__(self, driver: Any, runtime: Any, error: type[Exception], *, has_attributes: bool) -> None:
        self._driver, self._runtime, self._error = driver, runtime, error
        self._has_attributes = has_attributes

    def use(self, device: int) -> None:
        self._runtime.setDevice(device)

    def load(self, code: bytes, function: str, shared: int) -> tuple[int, int]:
        try:
            module = self._driver.moduleLoadData(code)
            pointer = self._driver.moduleGetFunction(module, function)
            if shared > STATIC_SHARED and self._has_attributes:
                self._driver.funcSetAttribute(pointer, _MAX_DYNAMIC_SHARED, shared)
        except self._error as error:
            raise KernelFault(f"the kernel {function} cannot be loaded: {error}") from error
        return int(module), int(pointer)

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


class CupyModules(RuntimeModules):
    """Those of CUDA. Raises MissingFault where cupy is not installed."""

    def __init__(self) -> None:
        try:
            from cupy.cuda import driver, runtime
        except ImportError as error:
            raise MissingFault("GPU kernels need cupy, which is not installed", hint=suggest_cuda()) from error
        super().__init__(driver, runtime, driver.CUDADriverError, has_attributes=True)


def scratch_size(call: KernelLaunch, binary: KernelBinary) -> int:
    """The bytes of scratch memory for all programs of a launch, a multiple of WORKSPACE_ALIGNMENT."""
    return -(-binary.scratch * call.grid // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def make_launch(
    driver: ModuleDriver, function: int, grid: int, threads: int, shared: int, pointers: Sequence[int]
) -> Launch:
    """A launch whose parameters are these pointers, of which the last ones are those that Triton adds."""
    count = len(pointers)
    values = (ctypes.c_uint64 * count)(*pointers)
    size = ctypes.sizeof(ctypes.c_uint64)
    addresses = (ctypes.c_uint64 * count)(*(ctypes.addressof(values) + size * n for n in range(count)))
    parameters = ctypes.addressof(addresses)

    def launch(stream: int, _kept: object = (values, addresses)) -> None:
        driver.launch(function, grid, threads, shared, stream, parameters)

    return launch
