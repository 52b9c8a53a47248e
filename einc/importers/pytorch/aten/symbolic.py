"""Numbers of a graph whose extents are dynamic: what Python computes of sizes as the module runs."""

from __future__ import annotations

from collections.abc import Callable

from einc.importers.arrays.extents import Extent, choose_larger, choose_smaller, make_extent
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis
from einc.importers.pytorch.aten.table import Call, Function, Size, aten


@aten("sym_size")
def convert_size(call: Call, self_: Array, dim: int) -> Size:
    return simplify(self_.shape[normalize_axis(dim, self_.rank)])


@aten("sym_numel")
def convert_numel(call: Call, self_: Array) -> Size:
    total = make_extent(1)
    for extent in self_.shape:
        total = total * extent
    return simplify(total)


def simplify(extent: Extent) -> Size:
    return extent.value if extent.is_number else extent


_OF_SIZES: dict[str, Callable[[Extent, Extent], Extent]] = {
    "_operator.add": lambda a, b: a + b, "_operator.sub": lambda a, b: a - b, "_operator.mul": lambda a, b: a * b,
    "_operator.floordiv": lambda a, b: a // b, "_operator.mod": lambda a, b: a % b,
    "torch.sym_max": choose_larger, "torch.sym_min": choose_smaller,
}  # fmt: skip


def _make(name: str, operation: Callable[[Extent, Extent], Extent]) -> Function:
    @aten(name)
    def convert(call: Call, a: Size | float, b: Size | float) -> Size:
        if isinstance(a, float) or isinstance(b, float):
            raise UnsupportedError("a float that is computed from an extent", "give the dimension a number")
        return simplify(operation(make_extent(a), make_extent(b)))

    return convert


_OF_TWO_SIZES = tuple(_make(name, operation) for name, operation in _OF_SIZES.items())


@aten("_operator.neg")
def convert_negative(call: Call, a: Size) -> Size:
    return simplify(-make_extent(a))
