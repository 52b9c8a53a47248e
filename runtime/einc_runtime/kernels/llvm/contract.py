"""The kernel `contract`: numpy's matrix products, with machine code for what is multiplied only and for conversions."""

from __future__ import annotations

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.llvm.map import build_map, move
from einc_runtime.kernels.numpy.contract import CannotAdd, contraction


def build_contract(invocation: Invocation[Array]) -> Kernel:
    return contraction(invocation, build_map, move)


def build_added_contract(invocation: Invocation[Array]) -> Kernel | None:
    """The kernel that adds its result to what the output holds, rounded in the output's type, if there is one."""
    try:
        return contraction(invocation, build_map, move, add=True)
    except CannotAdd:
        return None
