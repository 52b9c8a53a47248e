"""Machine code for what numpy has no single call for: LLVM makes it when a plan first needs it.

This is the one file that knows how LLVM is run (llvmlite, the extra `fast`). What is compiled are modules that our own
emitters build, step by step, from scalar programs that `program.parse` has read: a closed set of functions, positions
and numbers. No text of a plan becomes code. A module has one function that takes the address of 64-bit arguments.
Compiling takes some tens of milliseconds, attention two hundred, once per process, so nothing is kept on disk. A thread
of its own does it while the rest of a plan is prepared and weights are read.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

SMALL = 1 << 15
"""Elements in all invocations of a kind below which the time to compile does not come back."""

LANES = 16
"""Elements of the vectors that all machine code works on."""

FLOATS = frozenset({"f32", "f16", "bf16"})
"""The types that there is machine code for, beside bool."""

Compiled = Callable[[int], None]
_P = ParamSpec("_P")
_LOCK = threading.Lock()
_ALIKE: ContextVar[int] = ContextVar("alike", default=1)


class CompiledCall:
    """A call of code, once that is compiled, with addresses, extents and strides of arrays that it keeps alive."""

    __slots__ = ("_address", "_code", "_function", "_kept")

    def __init__(self, code: Future[Compiled], arguments: list[int], *arrays: Array) -> None:
        held = np.array(arguments, np.int64)
        self._code, self._address, self._kept = code, address(held), (held, arrays)
        self._function: Compiled | None = None

    def __call__(self) -> None:
        if self._function is None:
            self._function = self._code.result()
        self._function(self._address)


def operand_arguments(view: Array) -> list[int]:
    """What `Emitter.operand` reads: an address, and the strides of all but the last axis, 0 where it is broadcast."""
    return [address(view), *(0 if n == 1 else step for n, step in zip(view.shape[:-1], view.strides, strict=False))]


@cache
def is_available() -> bool:
    """Whether this process can compile kernels. Where it cannot, numpy computes everything, only slower."""
    try:
        return _engine().ready
    except (ImportError, OSError, RuntimeError):
        return False


def describe_missing() -> str | None:
    """What to tell of kernels that are large enough for machine code and run in numpy; None where there are none."""
    if not is_available.cache_info().currsize or is_available():
        return None
    return "elementwise kernels run in numpy: install llvmlite (the extra 'fast') to have them compiled"


@contextmanager
def expect_alike(alike: int) -> Iterator[None]:
    """What is prepared inside is one of so many invocations of its kind in every execution."""
    before = _ALIKE.set(alike)
    try:
        yield
    finally:
        _ALIKE.reset(before)


def is_worthwhile(elements: int) -> bool:
    """Whether an invocation, and those alike, are large enough for machine code, and it can be had."""
    return elements * _ALIKE.get() >= SMALL and is_available()


def has_wide_registers() -> bool:
    """Whether there are 32 registers of 512 bits."""
    return _engine().wide


def compile_once(emit: Callable[_P, Any]) -> Callable[_P, Future[Compiled]]:
    """For a function that makes a module: what begins to compile it when its arguments are first seen."""
    found: dict[object, Future[Compiled]] = {}

    @wraps(emit)
    def begun(*args: _P.args, **kwargs: _P.kwargs) -> Future[Compiled]:
        with _LOCK:
            key = (args, *sorted(kwargs.items()))
            if key not in found:
                found[key] = _compiler_thread().submit(lambda: _engine().compile(emit(*args, **kwargs)))
            return found[key]

    return begun


class _LlvmEngine:
    """LLVM for this processor."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self._llvm = llvm
        self._target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2
        )
        triple = llvm.get_default_triple()
        # Without instructions for 16-bit floats LLVM would call functions that may not be there.
        self.ready = bool(features.get("f16c") and features.get("fma")) or triple.startswith(("aarch64", "arm64"))
        self.wide = bool(features.get("avx512f"))
        # Our emitters write loops that need no more than registers for their variables.
        self._passes = llvm.create_new_module_pass_manager()
        self._passes.add_sroa_pass()
        self._builder = llvm.create_pass_builder(self._target, llvm.create_pipeline_tuning_options(speed_level=1))
        self._engine: Any = None

    def compile(self, module: Any) -> Compiled:
        """The function of a module; other threads run while it does. Only one thread compiles."""
        llvm = self._llvm
        parsed = llvm.parse_assembly(str(module))
        parsed.verify()
        self._passes.run(parsed, self._builder)
        if self._engine is None:
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
        self._engine.add_module(parsed)
        self._engine.finalize_object()
        entry = self._engine.get_function_address(module.name)
        function: Compiled = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(entry)
        return function


@cache
def _engine() -> _LlvmEngine:
    return _LlvmEngine()


@cache
def _compiler_thread() -> Executor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1, "einc compiler")
