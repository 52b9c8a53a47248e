"""The kernel `expert_matmul` with the products of `contract`: by libraries, or by machine code where few rows come."""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, dtype_name
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.contract import build_contract, make_copier
from einc_runtime.kernels.llvm.map import build_map
from einc_runtime.kernels.numpy import experts as in_numpy
from einc_runtime.kernels.numpy import libraries
from einc_runtime.kernels.numpy.contract import build_contraction

MAX_CODE_ROWS = 8
"""More rows are multiplied by oneDNN where it is the fastest library: with 16 rows, machine code for few rows takes
three times as long."""


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    call = ExpertMatmulCall.parse(invocation)
    if not compiler.is_worthwhile(call.multiplications, invocation.repetitions):
        return in_numpy.build_expert_matmul(invocation)
    return in_numpy.build_products(call, _multiply)


def _multiply(invocation: Invocation[Array]) -> Kernel:
    """A product whose weight is not prepared in another layout: that would be kept for each number of rows."""
    rows, weight = invocation.inputs
    variable_product = invocation.on([rows, _as_variable(weight)], invocation.outputs)
    if len(rows) > MAX_CODE_ROWS and libraries.packs_few_rows(dtype_name(weight)):
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
