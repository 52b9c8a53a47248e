"""The kernel `expert_matmul`: one call of machine code where experts have few rows, else products with machine code:
those of `contract`, or of `quantized_contract` where a weight is quantized.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import ANY_NUMBER, Invocation, Kernel, dtype_name
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.contract import build_contract, make_copier
from einc_runtime.kernels.llvm.expert_groups import ExpertGroups
from einc_runtime.kernels.llvm.few_rows import MAX_ROWS_PACKED
from einc_runtime.kernels.llvm.map import build_map
from einc_runtime.kernels.llvm.quantized import build_quantized_contract
from einc_runtime.kernels.numpy import experts as in_numpy
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.contract import build_contraction


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    call = ExpertMatmulCall.parse(invocation)
    if not compiler.is_worthwhile(call.multiplications, invocation.repetitions):
        return in_numpy.build_expert_matmul(invocation)
    if not isinstance(call.weight, np.ndarray):
        return in_numpy.build_products(call, _multiply_stored)
    groups = ExpertGroups.of(call, call.weight)
    return in_numpy.build_products(call, _multiply) if groups is None else groups.kernel


def _multiply(invocation: Invocation[Array]) -> Kernel:
    """A product whose weight is not prepared in another layout: that would be kept for each number of rows."""
    rows, weight = invocation.inputs
    variable_product = invocation.on([rows, _as_variable(weight)], invocation.outputs)
    if len(rows) > MAX_ROWS_PACKED and libraries.packs_few_rows(dtype_name(weight)):
        return build_contraction(variable_product, build_map, make_copier(invocation.repetitions))
    return build_contract(variable_product)


def _multiply_stored(invocation: Invocation[Array]) -> Kernel:
    """Products are prepared while a kernel runs, too: they are always machine code, however small they are."""
    return build_quantized_contract(replace(invocation, repetitions=ANY_NUMBER))


class _Writable:
    """The memory of an array, as an interface that says that it may be written."""

    def __init__(self, array: Array) -> None:
        interface: dict[str, Any] = array.view(f"u{array.itemsize}").__array_interface__
        self.__array_interface__, self.array = {**interface, "data": (interface["data"][0], False)}, array


def _as_variable(array: Array) -> Array:
    """The array as one that kernels take for no constant. It is not written."""
    seen: Array = np.asarray(_Writable(array)).view(array.dtype)
    return seen
