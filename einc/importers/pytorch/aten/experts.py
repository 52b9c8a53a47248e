"""Products of rows with the matrices of experts, and what sorts rows by them."""

from __future__ import annotations

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.moving import reshape, transpose
from einc.importers.arrays.products import multiply_picked
from einc.importers.arrays.reducing import reduce
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten


@aten("_grouped_mm", "transformers.grouped_mm_fallback")
def convert_grouped_mm(
    call: Call, self_: Array | None = None, mat2: Array | None = None, offs: Array | None = None,
    input: Array | None = None, weight: Array | None = None, bias: Array | None = None,
    out_dtype: ElementType | None = None,
) -> Array:  # fmt: skip
    """Rows up to offs[0] times the first matrix [k, n], those up to offs[1] times the second, and so on."""
    rows, matrices = self_ or input, mat2 or weight
    if rows is None or matrices is None or offs is None or rows.rank != 2 or matrices.rank != 3 or bias is not None:
        raise UnsupportedError("a grouped product of other forms than rows [s, k] and matrices [e, k, n]")
    program = call.program
    bounds = program.place(offs)
    text = "sum[r0](where({0}[r0] <= i0, 1, 0))"
    picks = program.equation("picks", ["i0="], text, [bounds], [rows.shape[0]], ElementType.I64)
    turned = transpose(program, matrices, [0, 2, 1], "experts")
    product = multiply_picked(program, rows, turned, reshape(program, picks, [rows.shape[0], 1]), call.hint)
    return reshape(program, product, [rows.shape[0], matrices.shape[2]], call.hint)


@aten("histc")
def convert_histogram(call: Call, self_: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """How many elements each of the bins between two numbers has; the last one has its upper bound, too. Bounds that
    are equal are those of the elements, and one more on both sides where these are equal."""
    program = call.program
    type_ = self_.type if self_.type.bits > ElementType.F32.bits else ElementType.F32
    flat = cast(program, reshape(program, self_, [-1]), type_)
    low, high = (program.constant(float(bound), type_) for bound in (min, max))
    if min == max:
        low, high = (reduce(program, flat, operation, None, hint=operation) for operation in ("min", "max"))
        apart = cast(program, apply(program, "eq", low, high), type_)
        low, high = apply(program, "sub", low, apart, hint="low"), apply(program, "add", high, apart, hint="high")
    width = apply(program, "sub", high, low)
    above = apply(program, "mul", apply(program, "sub", flat, low), float(bins))
    moved = apply(program, "div", above, width, hint="bin")
    placed = program.place(cast(program, apply(program, "floor", moved), ElementType.I64))
    last = program.place(cast(program, apply(program, "eq", flat, high), ElementType.I64))
    text = 'sum[r0](cast({0}[r0] - {1}[r0] == i0, "i64"))'
    counts = program.equation(call.hint, ["i0="], text, [placed, last], [make_extent(bins)], ElementType.I64)
    return call.cast(counts)
