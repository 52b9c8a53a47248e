"""Machine code for what numpy has no single call for: LLVM makes it when a plan first needs it.

This is the one file that knows how LLVM is run (llvmlite, the extra `fast`). What is compiled are modules that our own
emitters build, step by step, from scalar programs that `program.parse` has read: a closed set of functions, positions
and numbers. No text of a plan becomes code. A module has one function that takes the address of 64-bit arguments.
Compiling takes some tens of milliseconds, once per process, so nothing is kept on disk.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from runtime.dtypes import Array

SMALL = 1 << 14
"""Elements below which numpy's few calls are as fast, or the time to compile does not come back."""

Address = int
Compiled = Callable[[Address], None]


class Invocation:
    """A call of compiled code with its arguments: addresses, extents and strides. It keeps alive what they are of."""

    __slots__ = ("_address", "_function", "_kept")

    def __init__(self, function: Compiled, arguments: list[int], *arrays: Array) -> None:
        held = np.array(arguments, np.int64)
        self._function, self._address, self._kept = function, address(held), (held, arrays)

    def __call__(self) -> None:
        self._function(self._address)


def address(array: Array) -> Address:
    where: int = array.__array_interface__["data"][0]
    return where


@cache
def available() -> bool:
    """Whether this process can compile kernels. Where it cannot, numpy computes everything, only slower."""
    try:
        return _machine().ready
    except (ImportError, OSError, RuntimeError):
        return False


def note() -> str | None:
    """What to tell of kernels that are large enough for machine code and run in numpy; None where there are none."""
    if not available.cache_info().currsize or available():
        return None
    return "elementwise kernels run in numpy: install llvmlite (the extra 'fast') to have them compiled"


def worthwhile(elements: int) -> bool:
    """Whether an invocation is large enough for machine code, and it can be had."""
    return elements >= SMALL and available()


def compiled(module: Any) -> Compiled:
    """The function of a module. Other threads run while it does."""
    return _machine().compile(module)


class _Machine:
    """LLVM for this processor."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self._llvm, self._lock = llvm, threading.Lock()
        self._target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2
        )
        triple = llvm.get_default_triple()
        # Without instructions for 16-bit floats LLVM would call functions that may not be there.
        self.ready = bool(features.get("f16c") and features.get("fma")) or triple.startswith(("aarch64", "arm64"))
        self._engine: Any = None

    def compile(self, module: Any) -> Compiled:
        llvm = self._llvm
        with self._lock:
            parsed = llvm.parse_assembly(str(module))
            parsed.verify()
            options = llvm.create_pipeline_tuning_options(speed_level=1)
            builder = llvm.create_pass_builder(self._target, options)
            builder.getModulePassManager().run(parsed, builder)
            if self._engine is None:
                self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
            self._engine.add_module(parsed)
            self._engine.finalize_object()
            entry = self._engine.get_function_address(module.name)
        function: Compiled = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entry)
        return function


@cache
def _machine() -> _Machine:
    return _Machine()
