"""Compiled kernels on devices: found or compiled, loaded when they are first bound, with the tables that they read."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from einc_runtime.errors import MissingFault
from einc_runtime.kernels.cuda import kernel_cache, triton_compile
from einc_runtime.kernels.cuda.launch import ModuleDriver, launcher
from einc_runtime.kernels.cuda.triton_compile import Binary
from einc_runtime.kernels.gpu import Launch, Target
from einc_runtime.kernels.triton.plan import SCRATCH, Argument, Call, Source, Status, Table


class Modules:
    """`places` are directories with compiled kernels."""

    def __init__(self, places: Sequence[Path], driver: ModuleDriver) -> None:
        self.driver = driver
        self.compiler = triton_compile.version()
        self._places = tuple(places)
        self._binaries: dict[tuple[str, str], Binary] = {}
        self._functions: dict[tuple[int, str], int] = {}
        self._loaded: list[tuple[int, int]] = []  # device and module
        self._tables: dict[tuple[int, bytes], int] = {}

    def binary(self, source: Source, architecture: str) -> Binary:
        """Raises MissingFault where it is not there and cannot be compiled, and KernelFault where that fails."""
        key = (source.key, architecture)
        if key not in self._binaries:
            self._binaries[key] = self._found_or_compiled(source, architecture)
        return self._binaries[key]

    def launch(self, call: Call, binary: Binary, memory: int, status: int, target: Target) -> Launch:
        """A call with its workspace and its status word; the device is current."""
        key = (target.device, call.source.key)
        if key not in self._functions:
            module, function = self.driver.load(binary.code, binary.function, binary.shared)
            self._loaded.append((target.device, module))
            self._functions[key] = function
        pointers = [self._pointer(argument, memory, status, target) for argument in call.arguments]
        return launcher(self.driver, self._functions[key], call.grid, binary.warps, binary.shared, pointers)

    def close(self) -> None:
        """Everything is tried, also after a device was lost; the first error is raised in the end."""
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

    def _found_or_compiled(self, source: Source, architecture: str) -> Binary:
        found = kernel_cache.find(source, architecture, self._places, self.compiler)
        if found is not None:
            return found
        try:
            binary = triton_compile.compile_source(source, architecture)
        except MissingFault as fault:
            others = kernel_cache.known(source, self._places)
            if not others:
                raise
            message = f"this plan's kernels are compiled for {', '.join(others)} only, and this is {architecture}"
            raise MissingFault(message, hint=f"compile with --precompile {architecture}, or {fault.hint}") from None
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to fail
            kernel_cache.store(source, architecture, binary, kernel_cache.user_directory())
        return binary

    def _pointer(self, argument: Argument, memory: int, status: int, target: Target) -> int:
        if isinstance(argument, Table):
            key = (target.device, argument.data)
            if key not in self._tables:
                self._tables[key] = self.driver.upload(argument.data)
            return self._tables[key]
        return status if isinstance(argument, Status) else placed(argument, memory)


def placed(address: int, memory: int) -> int:
    """An address of a plan, once its workspace is there."""
    return memory + address - SCRATCH if address >= SCRATCH else address
