"""The kernel `expert_matmul` of reproducible plans: sums are in one order, however many rows an expert has."""

from __future__ import annotations

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import experts as in_numpy
from einc_runtime.kernels.reproducible.contract import build_contract


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    return in_numpy.build_products(ExpertMatmulCall.parse(invocation), _multiply)


def _multiply(invocation: Invocation[Array]) -> Kernel:
    """Products are prepared while a kernel runs, too: they are always machine code, however small they are."""
    with compiler.compile_all():
        return build_contract(invocation)
