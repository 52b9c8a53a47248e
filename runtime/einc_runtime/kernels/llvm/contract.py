"""The kernel `contract`: products of few rows in machine code, others by a library's or numpy's matrix products, with
machine code for elementwise products and conversions.
"""

from __future__ import annotations

from functools import partial

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, store
from einc_runtime.kernels.calls.contract import ContractCall, write_product_program
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.few_rows import prepare_few_rows
from einc_runtime.kernels.llvm.map import build_map, compile_map
from einc_runtime.kernels.llvm.reduce import compile_reduce
from einc_runtime.kernels.llvm.transpose import compile_transpose
from einc_runtime.kernels.numpy.contract import PrepareCopy, build_contraction
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.scalar_program import read_steps

_MOVES = frozenset((kind, kind) for kind in compiler.COMPILED_FLOATS) | {
    pair for kind in ("f16", "bf16") for pair in ((kind, "f32"), ("f32", kind))
}
"""Copies that `prepare_copy` compiles: conversions, and copies from one memory order to another, slow in numpy."""


def build_contract(invocation: Invocation[Array]) -> Kernel:
    call = ContractCall.parse(invocation)
    move = make_copier(invocation.repetitions)
    few = prepare_few_rows(call, move) or _sum_products(call)
    return build_contraction(invocation, build_map, move) if few is None else few


def _sum_products(call: ContractCall) -> Kernel | None:
    """The kernel of products of vectors: each operand has all indices of the result. None for other contractions."""
    if (
        call.kind != "f32"
        or not call.sums
        or not all({*call.result.names} <= {*operand.names} for operand in call.operands)
    ):
        return None
    attributes = {
        "program": write_product_program(len(call.operands), call.scale),
        "indices": call.invocation.attribute("equation", str),
        "aggregation": "sum",
    }
    reduction = Invocation("reduce", attributes, call.invocation.inputs, [call.result.array])
    return compile_reduce(ReduceCall.parse(reduction), call.invocation.repetitions)


def make_copier(repetitions: int) -> PrepareCopy:
    """What prepares copies for an invocation of which an execution has so many."""
    return partial(prepare_copy, repetitions=repetitions)


def prepare_copy(source: Array, target: Array, repetitions: int = 1) -> Resolved:
    """Returns the call that copies an array to another of its shape, rounding or widening floats."""
    names = (find_dtype_name(source.dtype), find_dtype_name(target.dtype))
    if names in _MOVES and compiler.is_worthwhile(target.size, repetitions):
        steps = read_steps("t0 = copy x0", names[:1])
        run = compile_map(steps, names, [source, target]) or compile_transpose(source, target, names)
        if run is not None:
            return run, []
    return store, [source, target]
