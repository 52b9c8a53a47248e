"""The kernel `recurrence`: machine code computes elements alike in all blocks, and numpy adds up in a fixed order."""

from __future__ import annotations

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.llvm.recurrence import compile_recurrence
from einc_runtime.kernels.numpy.recurrence import make_recurrence


def build_recurrence(invocation: Invocation[Array]) -> Kernel:
    call = RecurrenceCall.parse(invocation)
    return compile_recurrence(call) or make_recurrence(call, ordered=True)
