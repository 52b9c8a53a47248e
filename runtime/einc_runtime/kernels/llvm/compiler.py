"""Compiles kernels to machine code with LLVM when a plan first needs them.

This is the only file that knows how LLVM is run (llvmlite). It compiles modules that our emitters
build from parsed scalar programs: a closed set of functions, positions and numbers. No text of a plan becomes code. A
module has one function that takes the address of 64-bit arguments, and returns 0 if all went well. Compiling takes some
tens of milliseconds (two hundred for attention) once on a machine: the code is kept in the user's cache folder
(`code_cache.py`). A thread of its own compiles while the rest of a plan is prepared and weights are read.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import code_cache
from einc_runtime.kernels.processor import Registers, find_processor
from einc_runtime.resident import release_program

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

MIN_COMPILED_ELEMENTS = 1 << 15
"""Kernels whose invocations have fewer elements together are not worth the time to compile them."""

NUMPY_CALLS_SAVED = 8
"""As many calls of numpy as one of this code, for each element of a reduction, each pair of a query and a key, and each
step of a recurrence."""

INVOCATION = 2048
"""Starting a kernel of numpy takes as long as machine code takes for so many elements."""

LANES = 16
"""Elements in the vectors of all machine code."""

SUM_CHAINS = 4
"""Sums that are added up side by side, so that an addition does not wait for the one before."""

BYTES_AHEAD = 8192
"""From what is read of rows to what is fetched from memory meanwhile: rows that follow, whose pages a processor begins
late by itself. Softmax takes 0.74 times as long on an Intel Xeon (family 6, model 167), and layernorm 0.79 times."""

COMPILED_FLOATS = frozenset({"f32", "f16", "bf16"})
"""The types that machine code supports, beside bool."""

Compiled = Callable[[int], int]
"""Machine code: takes the address of its arguments, and returns a status, 0 if all went well."""
_P = ParamSpec("_P")
_LOCK = threading.Lock()


def _ignore() -> None:
    """What no code does that has no status."""


class CompiledCall:
    """A call of compiled code with addresses, extents and strides of arrays, which it keeps alive.

    Code that finds values with which it cannot go on returns a status other than 0 before it writes anything. `fail`
    raises what is wrong with them.
    """

    __slots__ = ("_address", "_code", "_function", "_kept", "fail")

    def __init__(
        self, code: Future[Compiled], arguments: Sequence[int], *arrays: Array, fail: Callable[[], None] = _ignore
    ) -> None:
        held = np.array(arguments, np.int64)
        self._code, self._address, self._kept = code, address(held), (held, arrays)
        self._function: Compiled | None = None
        self.fail = fail

    def __call__(self) -> None:
        if self._function is None:
            self._function = self._code.result()
        if self._function(self._address):
            self.fail()

    @property
    def places(self) -> tuple[int, int]:
        """The addresses of the code, which is compiled by now, and of its arguments."""
        return find_address(self._code), self._address


def find_address(code: Future[Compiled]) -> int:
    return ctypes.cast(code.result(), ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def operand_arguments(view: Array) -> list[int]:
    """What `Emitter.operand` reads: an address, and the strides of all but the last axis, 0 where it is broadcast."""
    return [address(view), *(0 if n == 1 else step for n, step in zip(view.shape[:-1], view.strides, strict=False))]


@cache
def is_available() -> bool:
    """Whether this process can compile kernels. If not, numpy computes everything, more slowly."""
    try:
        return _engine().ready
    except (ImportError, OSError, RuntimeError):
        return False


def describe_missing() -> str | None:
    """A note for the user if kernels that are large enough for machine code run in numpy, else None."""
    if not is_available.cache_info().currsize or is_available():
        return None
    return "elementwise kernels run in numpy: llvmlite is not installed, or not for this processor"


def is_worthwhile(elements: int, repetitions: int) -> bool:
    """Whether so many invocations of so many elements each are worth machine code, which can be compiled."""
    return (elements + INVOCATION) * repetitions >= MIN_COMPILED_ELEMENTS + INVOCATION and is_available()


def has_wide_registers() -> bool:
    """Whether the processor has 32 registers of 512 bits."""
    return _engine().processor.has_wide_registers


def find_registers() -> Registers:
    """The processor's registers for floats."""
    return _engine().processor.registers


def choose_registers(sums: int) -> Registers:
    """The registers for so many sums (`Processor.choose_registers`)."""
    return _engine().processor.choose_registers(sums)


def multiplies_bf16() -> bool:
    """Whether the processor has instructions that multiply pairs of bf16, in registers of 512 bits."""
    return _engine().processor.multiplies_bf16


def looks_up_bytes() -> bool:
    """Whether the processor looks up 32 bytes in a table of 16 at once, and nothing wider does better."""
    features = _engine().processor.features
    return "avx2" in features and "avx512f" not in features


def multiplies_tiles() -> bool:
    """Whether the processor multiplies tiles of bf16."""
    return _engine().processor.multiplies_tiles


def find_integer_products() -> str:
    """What the processor multiplies and adds up at once (`Processor.integer_products`)."""
    return _engine().processor.integer_products


def compile_once(emit: Callable[_P, Any]) -> Callable[_P, Future[Compiled]]:
    """Decorates a function that builds a module: the module is compiled in the background, once for equal arguments."""
    compiled: dict[object, Future[Compiled]] = {}

    @wraps(emit)
    def begun(*args: _P.args, **kwargs: _P.kwargs) -> Future[Compiled]:
        with _LOCK:
            key = (args, *sorted(kwargs.items()))
            if key not in compiled:
                name = f"{emit.__module__}.{emit.__qualname__}"
                compiled[key] = _compiler_thread().submit(
                    lambda: _engine().load(lambda: emit(*args, **kwargs), name, key)
                )
            return compiled[key]

    return begun


def rest() -> None:
    """Says that nothing will be compiled for a while. When all that has begun is done, LLVM's program, some 35 MiB, is
    given back to the system."""
    if _engine.cache_info().currsize or _compiler_thread.cache_info().currsize:
        _compiler_thread().submit(lambda: release_program("llvmlite"))


class _LlvmEngine:
    """LLVM for this processor."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._llvm = llvm
        self.processor = find_processor()
        cpu, attributes = self.processor.cpu, self.processor.attributes
        self._target = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=attributes, opt=2)
        triple = llvm.get_default_triple()
        version = f"{llvmlite.__version__} {llvm.llvm_version_info}"
        self._machine = f"{version} {triple} {cpu} {attributes}"
        self._numbers = itertools.count()
        # Without instructions for 16-bit floats, LLVM would call library functions that may be missing.
        self.ready = self.processor.converts_f16 or triple.startswith(("aarch64", "arm64"))
        # Our emitters only need their variables to become registers.
        self._passes = llvm.create_new_module_pass_manager()
        self._passes.add_sroa_pass()
        self._builder = llvm.create_pass_builder(self._target, llvm.create_pipeline_tuning_options(speed_level=1))
        self._engine: Any = None

    def load(self, emit: Callable[[], Any], emitter: str, arguments: object) -> Compiled:
        """The function of the module that `emit` makes, compiled now or before. Only one thread compiles."""
        key = code_cache.name_code(emitter, arguments, self._machine)
        code = None if key is None else code_cache.recall(key)
        name = f"kernel{next(self._numbers)}" if key is None else f"kernel_{key}"
        if code is None:
            code = self._compile(emit(), name)
            if key is not None:
                code_cache.remember(key, code)
        if self._engine is None:
            self._engine = self._llvm.create_mcjit_compiler(self._llvm.parse_assembly(""), self._target)
        self._engine.add_object_file(self._llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        function: Compiled = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self._engine.get_function_address(name))
        return function

    def _compile(self, module: Any, name: str) -> bytes:
        """The machine code of a module, as an object file in which its function has this name."""
        parsed = self._llvm.parse_assembly(str(module))
        parsed.get_function(module.name).name = name
        parsed.verify()
        self._passes.run(parsed, self._builder)
        code: bytes = self._target.emit_object(parsed)
        return code


@cache
def _engine() -> _LlvmEngine:
    return _LlvmEngine()


@cache
def _compiler_thread() -> Executor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(1, "einc compiler")
