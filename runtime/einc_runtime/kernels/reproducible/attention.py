"""The kernel `attention` in one order: a row's keys are added in their order, in tiles from the start of its sequence.

That is what machine code does for all invocations (`llvm/attention_code.py`). In f64, and where there is no machine
code, numpy adds key after key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.attention import AttentionCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.attention import prepare_attention
from einc_runtime.kernels.numpy.attention import make_attention
from einc_runtime.kernels.reproducible.dense import build_on_dense, has_dense_rows
from einc_runtime.kernels.reproducible.products import add_outer_products


def build_attention(invocation: Invocation[Array]) -> Kernel:
    call = AttentionCall.parse(invocation)
    if call.dtype != np.float32 or not compiler.is_available():
        return make_attention(call, _multiply)

    def build(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        return prepare_attention(AttentionCall.parse(invocation.on(inputs, outputs)), invocation.repetitions)

    return build_on_dense(invocation.inputs, invocation.outputs, build, has_dense_rows)


def _multiply(left: Array, right: Array) -> Array:
    target = np.empty((*left.shape[:-1], right.shape[-1]), left.dtype)
    add_outer_products(left, right, target, np.empty_like(target))
    return target
