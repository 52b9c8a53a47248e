"""The kernels `softmax`, `rmsnorm`, `layernorm` and `rope`: one code for every row, on dense operands.

A row's sums are taken over the row alone, in an order that depends on its length (`llvm/rows.py`, `numpy/rows.py`).

For the kernel `recurrence`, machine code computes elements alike in all blocks, and numpy adds up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.recurrence import RecurrenceCall
from einc_runtime.kernels.calls.rows import SoftmaxCall
from einc_runtime.kernels.llvm import compiler, rows
from einc_runtime.kernels.llvm.recurrence import compile_recurrence
from einc_runtime.kernels.numpy.recurrence import make_recurrence
from einc_runtime.kernels.reproducible.dense import build_on_dense, has_dense_rows, is_contiguous


def build_recurrence(invocation: Invocation[Array]) -> Kernel:
    call = RecurrenceCall.parse(invocation)
    return compile_recurrence(call, invocation.repetitions) or make_recurrence(call, ordered=True)


def build_norm(invocation: Invocation[Array]) -> Kernel:
    return _build(invocation, rows.build_norm)


def build_rope(invocation: Invocation[Array]) -> Kernel:
    return _build(invocation, rows.build_rope)


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    """Along any axis: the operands are turned so that it is the last one."""
    call = SoftmaxCall.parse(invocation)
    source, target = (np.moveaxis(array, call.axis, -1) for array in (call.source, call.target))
    turned = replace(invocation, attributes={"axis": -1}, inputs=[source], outputs=[target])
    return _build(turned, rows.build_softmax)


def _build(invocation: Invocation[Array], build: Callable[[Invocation[Array]], Kernel]) -> Kernel:
    def build_on(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        return build(invocation.on(inputs, outputs))

    compiled = find_dtype_name(invocation.output.dtype) in compiler.COMPILED_FLOATS and compiler.is_available()
    is_dense = has_dense_rows if compiled else is_contiguous
    return build_on_dense(invocation.inputs, invocation.outputs, build_on, is_dense)
