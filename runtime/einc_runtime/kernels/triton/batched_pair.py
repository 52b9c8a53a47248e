"""Two contractions that share an operand as one batch of products, such as gate and up, or keys and values.

A product of few tiles leaves some multiprocessors idle, at least in its last round. Two products of one form whose
operands are equally far apart in memory can be one launch. They are batched where that uses the multiprocessors better
by some percent.
"""

from __future__ import annotations

from dataclasses import replace

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT, LaunchSequence, as_layout

CUBLAS_TILE = (128, 256)
"""Rows and columns of a result that a multiprocessor computes at a time in cuBLAS's large kernels."""

GAIN = 1.02
"""The least gain: smaller ones are uncertain, since libraries choose kernels by rules of their own."""


def build_batched_pair(
    first: Invocation[GpuArray], second: Invocation[GpuArray], multiprocessors: int
) -> LaunchSequence | None:
    """One batch of products, or None, as in reproducible plans."""
    if first.is_reproducible or second.is_reproducible:
        return None
    products: list[Gemm] = []
    for contraction in (first, second):
        sequence = build_contraction(contraction)
        products += [step for step in sequence.steps if isinstance(step, Gemm)]
        if len(sequence.steps) != 1 or sequence.scratch:
            return None
    if len(products) != 2:
        return None
    both = batch_products(*products)
    gains = both is not None and idle_factor(products[0], multiprocessors) > GAIN * idle_factor(both, multiprocessors)
    return LaunchSequence((both,)) if both is not None and gains else None


def build_contraction(contraction: Invocation[GpuArray]) -> LaunchSequence:
    return build_contract(
        contraction.on([as_layout(x) for x in contraction.inputs], [as_layout(x) for x in contraction.outputs])
    )


def batch_products(left: Gemm, right: Gemm) -> Gemm | None:
    """One batch of two products, if they are of one form, share an operand, and lie in memory as a batch does."""
    if replace(left, a=0, b=0, c=0) != replace(right, a=0, b=0, c=0) or left.epilogue:
        return None
    if (left.a != right.a and left.b != right.b) or left.c == right.c:
        return None
    if left.c > right.c:
        left, right = right, left
    strides = []
    for start, end, stride, kind in (
        (left.a, right.a, left.stride_a, left.kind),
        (left.b, right.b, left.stride_b, left.kind),
        (left.c, right.c, left.stride_c, left.result),
    ):
        apart, size = end - start, ITEMSIZE[kind]
        if apart < 0 or apart % POINTER_ALIGNMENT or (left.batch > 1 and apart != left.batch * stride * size):
            return None
        strides.append(stride if left.batch > 1 else apart // size)
    stride_a, stride_b, stride_c = strides
    return replace(left, batch=2 * left.batch, stride_a=stride_a, stride_b=stride_b, stride_c=stride_c)


def idle_factor(product: Gemm, multiprocessors: int) -> float:
    """The time of a product relative to that without idle multiprocessors in the last round."""
    tiles = -(-product.m // CUBLAS_TILE[0]) * -(-product.n // CUBLAS_TILE[1]) * product.batch
    return -(-tiles // multiprocessors) * multiprocessors / tiles
