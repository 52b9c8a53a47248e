"""Dimensions that a model merges for a product of two dimensions, and divides again behind it, stay apart.

PyTorch's layers view `[batch, tokens, width]` as `[batch * tokens, width]` to multiply it by a matrix, and view the
result as `[batch, tokens, ...]` again. A cut of the merged dimension is one of the outer of the two; with both, the
same operators are cut along each, and the two views are gone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from einc.importers.arrays.elementwise import apply
from einc.importers.arrays.extents import Extent, multiply_extents
from einc.importers.arrays.moving import reshape
from einc.importers.arrays.products import matmul, multiply_rows
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.repeats import Statement
from einc.importers.arrays.scalar_forms import SCALAR_FORMS
from einc.importers.arrays.values import Array
from einc.importers.arrays.views import Origin

ROW_PRODUCTS = {"matmul": matmul, "multiply_rows": multiply_rows}
"""Operations that multiply each row by one matrix."""


def keep_apart(program: ArrayProgram) -> None:
    """Computes what lies between a merging and a dividing reshape with the dimensions apart.

    That is done where nothing else reads it, for products with matrices and functions of elements.
    """
    program.prune()
    readers = Counter(name for statement in program.statements for name in set(statement.operands))
    readers.update(program.output_names)
    kept: list[Statement] = []
    for statement in program.statements:
        divided = _find_divided(program.origins.get(statement.names[0]), statement)
        apart: list[Statement] = []
        if divided is not None and divided.can_be_apart(divided.array, program.origins, readers):
            apart = program.rewrite(divided.result, functools.partial(divided.compute, program, divided.array))
        kept += apart or [statement]
    program.statements = kept


@dataclass(frozen=True, slots=True)
class _Divided:
    """A reshape of `array` to `result`, which divides the first dimension into `leading` and keeps the others."""

    array: Array
    result: Array
    leading: tuple[Extent, ...]

    def can_be_apart(self, array: Array, origins: Mapping[str, Origin], readers: Mapping[str, int]) -> bool:
        """Whether an array, which nothing else reads, can be computed with its first dimension divided."""
        origin = origins.get(array.name)
        if origin is None or readers[array.name] != 1:
            return False
        if self.is_merged(origin):
            return True
        merged = [operand for operand in _list_arrays(origin) if self.reads_rows(operand, array)]
        if origin.operation in ROW_PRODUCTS:
            fits = merged == [origin.arguments[0]] and origin.arguments[1].rank == 2
        else:
            fits = origin.operation in SCALAR_FORMS and bool(merged)
            fits = fits and all(operand.rank < array.rank for operand in _list_arrays(origin) if operand not in merged)
        return fits and all(self.can_be_apart(operand, origins, readers) for operand in merged)

    def is_merged(self, origin: Origin) -> bool:
        """Whether an operation is the reshape that merged the dimensions."""
        if origin.operation != "reshape":
            return False
        source: Array = origin.arguments[0]
        count = len(self.leading)
        return (
            source.rank > count
            and source.shape[:count] == self.leading
            and multiply_extents(source.shape[count:]) == multiply_extents(origin.result.shape[1:])
        )

    def reads_rows(self, operand: Array, array: Array) -> bool:
        """Whether the first dimension of an operand is that of what is computed of it."""
        return operand.known is None and operand.rank == array.rank and operand.shape[0] == array.shape[0]

    def compute(self, program: ArrayProgram, array: Array) -> Array:
        """The array with its first dimension divided."""
        origin = program.origins[array.name]
        hint = program.names.bases[array.name]
        if self.is_merged(origin):
            return reshape(program, origin.arguments[0], [*self.leading, *array.shape[1:]], hint=hint)
        operands = [
            self.compute(program, operand)
            if isinstance(operand, Array) and self.reads_rows(operand, array)
            else operand
            for operand in origin.arguments
        ]
        if origin.operation in ROW_PRODUCTS:
            rows, matrix = operands[:2]
            return ROW_PRODUCTS[origin.operation](program, rows, matrix, hint=hint)
        return apply(program, origin.operation, *operands, hint=hint)


def _list_arrays(origin: Origin) -> list[Array]:
    return [argument for argument in origin.arguments if isinstance(argument, Array)]


def _find_divided(origin: Origin | None, statement: Statement) -> _Divided | None:
    """The reshape that a statement is, if it divides the first dimension and keeps the others."""
    if origin is None or origin.operation != "reshape" or len(statement.names) > 1:
        return None
    array, result = origin.arguments[0], origin.result
    count = result.rank - array.rank + 1
    if count < 2 or array.rank < 2 or statement.operands != (array.name,):
        return None
    if result.shape[count:] != array.shape[1:] or multiply_extents(result.shape[:count]) != array.shape[0]:
        return None
    return _Divided(array, result, result.shape[:count])
