"""The kernel `contract`: numpy's matrix products, with machine code for what is multiplied only and for conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runtime.bundle import Attribute, Block
from runtime.dtypes import Array
from runtime.kernels.base import Kernel
from runtime.kernels.native_map import build_map, move
from runtime.kernels.numpy_contract import CannotAdd, contraction


def build_contract(
    attributes: Mapping[str, Attribute],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    input_blocks: Sequence[Block],
    output_blocks: Sequence[Block],
) -> Kernel:
    return contraction(attributes, inputs, outputs, (input_blocks, output_blocks), build_map, move)


def build_added_contract(
    attributes: Mapping[str, Attribute], inputs: Sequence[Array], outputs: Sequence[Array]
) -> Kernel | None:
    """The kernel that adds its result to what the output holds, rounded in the output's type, if there is one."""
    try:
        return contraction(attributes, inputs, outputs, ((), ()), build_map, move, add=True)
    except CannotAdd:
        return None
