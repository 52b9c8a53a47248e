"""Calls of oneDNN by machine code: between kernels of ours and those of the library, threads need no interpreter."""

from __future__ import annotations

from typing import Any

from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.numpy.onednn import OnednnCall


class LibraryCall:
    """Makes the same call, of which it keeps all that the call needs. See `schedules.MachineCall`.

    It is made in a thread for which oneDNN's settings were said (`onednn.limit_threads`).
    """

    __slots__ = ("_kept", "fail", "places")

    def __init__(self, call: OnednnCall) -> None:
        compiled = CompiledCall(_emit_call(), [*call.numbers])
        self.places, self.fail, self._kept = compiled.places, call.fail, (call, compiled)


@compiler.compile_once
def _emit_call() -> Any:
    """Arguments: the address of a function that takes two addresses, a count and an address, and these. What it returns
    is the status."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I32, I64, Emitter

    e = Emitter()
    function, primitive, stream, count, arguments = (e.argument() for _ in range(5))
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(I32, [pointer, pointer, I32, pointer])
    operands = [e.b.inttoptr(operand, pointer) for operand in (primitive, stream, arguments)]
    operands.insert(2, e.b.trunc(count, I32))
    e.b.ret(e.b.sext(e.b.call(e.b.inttoptr(function, kind.as_pointer()), operands), I64))
    return e.module
