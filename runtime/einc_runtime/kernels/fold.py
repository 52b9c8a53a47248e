"""Aggregations that a plan defines, on the CPU: machine code where there is some, else numpy.

In reproducible plans it is numpy on dense operands, whose order depends on the extents of what is aggregated alone.
"""

from __future__ import annotations

from einc_runtime.kernels.base import Kernel
from einc_runtime.kernels.calls.fold import CombineCall, FoldCall
from einc_runtime.kernels.numpy.fold import make_combine, make_fold


def build_fold(call: FoldCall, repetitions: int, *, compiled: bool, reproducible: bool) -> Kernel:
    """The kernel of an index program's aggregation; `compiled` says whether machine code may be used, and `repetitions`
    how many of its kind an execution has."""
    if compiled and not reproducible:
        from einc_runtime.kernels.llvm.fold import compile_fold

        kernel = compile_fold(call, repetitions)
        if kernel is not None:
            return kernel
    return make_fold(call, dense=reproducible)


def build_combine(call: CombineCall, repetitions: int, *, compiled: bool) -> Kernel:
    """The kernel that combines copies of partial results, as `build_fold`."""
    if compiled:
        from einc_runtime.kernels.llvm.fold import compile_combine

        kernel = compile_combine(call, repetitions)
        if kernel is not None:
            return kernel
    return make_combine(call)
