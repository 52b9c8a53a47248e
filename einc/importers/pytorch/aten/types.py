"""How torch chooses the type that operands are computed in (torch.result_type)."""

from __future__ import annotations

from collections.abc import Sequence

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.extents import Extent
from einc.importers.arrays.values import Array, UnsupportedError

Operand = Array | Extent | float

_BY_WIDTH = [
    ElementType.BOOL, ElementType.U8, ElementType.I8, ElementType.I16, ElementType.I32, ElementType.I64,
    ElementType.F16, ElementType.BF16, ElementType.F32, ElementType.F64,
]  # fmt: skip


def _category(type_: ElementType) -> int:
    return 0 if type_.is_bool else 1 if type_.is_integer else 2


def promote(operands: Sequence[Operand]) -> ElementType:
    """The type of a result: tensors with dimensions first, then those without, then numbers; a later kind counts only
    where its category (bool, whole numbers, floats) is higher."""
    tiers: list[list[ElementType]] = [[], [], []]
    for operand in operands:
        if isinstance(operand, Array):
            tiers[0 if operand.rank else 1].append(operand.type)
        else:
            tiers[2].append(type_of_number(operand))
    result: ElementType | None = None
    for tier in tiers:
        for type_ in tier[:1]:
            joined = type_
            for more in tier[1:]:
                joined = _join(joined, more)
            if result is None or _category(joined) > _category(result):
                result = joined
    if result is None:
        raise UnsupportedError("operands without a type")
    return result


def type_of_number(value: Extent | float) -> ElementType:
    if isinstance(value, bool):
        return ElementType.BOOL
    return ElementType.I64 if isinstance(value, int | Extent) else ElementType.F32


def _join(first: ElementType, second: ElementType) -> ElementType:
    if first is second:
        return first
    pair = {first, second}
    if pair == {ElementType.F16, ElementType.BF16}:
        return ElementType.F32
    if pair == {ElementType.U8, ElementType.I8}:
        return ElementType.I16
    for type_ in pair:
        if type_ not in _BY_WIDTH:
            raise UnsupportedError(f"operands of types {first.value} and {second.value}")
    return max(first, second, key=_BY_WIDTH.index)
