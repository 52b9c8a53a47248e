"""The kernel `contract`: products of few rows in machine code, others by a library's or numpy's matrix products, with
machine code for elementwise products and conversions. `expert_matmul` multiplies by the same products.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, dtype_name, store
from einc_runtime.kernels.calls.contract import ContractCall, write_product_program
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.calls.map import ReduceCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.few_rows import MAX_ROWS_PACKED, prepare_few_rows
from einc_runtime.kernels.llvm.map import build_map, compile_map
from einc_runtime.kernels.llvm.reduce import compile_reduce
from einc_runtime.kernels.numpy import experts as in_numpy
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.contract import PrepareCopy, build_contraction
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.scalar_program import read_steps

_MOVES = frozenset({("f16", "f32"), ("bf16", "f32"), ("f32", "f16"), ("f32", "bf16"), ("f32", "f32")})
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
        run = compile_map(steps, names, [source, target])
        if run is not None:
            return run, []
    return store, [source, target]


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    call = ExpertMatmulCall.parse(invocation)
    if not compiler.is_worthwhile(call.multiplications, invocation.repetitions):
        return in_numpy.build_expert_matmul(invocation)
    return in_numpy.build_products(call, _multiply)


def _multiply(invocation: Invocation[Array]) -> Kernel:
    """A product whose weight is not prepared in another layout: that would be kept for each number of rows."""
    rows, weight = invocation.inputs
    variable_product = invocation.on([rows, _as_variable(weight)], invocation.outputs)
    if len(rows) > MAX_ROWS_PACKED and libraries.packs_few_rows(dtype_name(weight)):
        return build_contraction(variable_product, build_map, make_copier(invocation.repetitions))
    return build_contract(variable_product)


class _Writable:
    """The memory of an array, as an interface that says that it may be written."""

    def __init__(self, array: Array) -> None:
        interface: dict[str, Any] = array.view(f"u{array.itemsize}").__array_interface__
        self.__array_interface__, self.array = {**interface, "data": (interface["data"][0], False)}, array


def _as_variable(array: Array) -> Array:
    """The array as one that kernels take for no constant. It is not written."""
    seen: Array = np.asarray(_Writable(array)).view(array.dtype)
    return seen
