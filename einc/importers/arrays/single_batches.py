"""A first dimension of extent 1, as models have for their batch, is left out where it says nothing.

Models compute `[1, tokens, width]`. Each place where such an array meets one without the batch (heads of attention,
rows that are looked up) would be a copy in a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from einc.importers.arrays.attention import rotate
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import make_extent
from einc.importers.arrays.moving import concat, reshape, slice_axis, transpose
from einc.importers.arrays.products import matmul, multiply_rows
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.reducing import layer_norm, rms_norm
from einc.importers.arrays.repeats import Statement
from einc.importers.arrays.scalar_forms import SCALAR_FORMS
from einc.importers.arrays.values import Array, normalize_axis
from einc.importers.arrays.views import Origin

_SINGLE_BATCH = make_extent(1)
_OF_ROWS: Mapping[str, tuple[Callable[..., Array], int]] = {
    "cast": (cast, 1), "layer_norm": (layer_norm, 3), "matmul": (matmul, 1), "multiply_rows": (multiply_rows, 1),
    "rms_norm": (rms_norm, 3), "rotate": (rotate, 1),
}  # fmt: skip
"""Operations on the last dimensions of their first operand, and how many arguments follow: vectors and matrices."""


def drop_single_batches(program: ArrayProgram) -> None:
    """Computes arrays [1, ...] without their first dimension where what they are computed of is known without it."""
    program.prune()
    lift, program.lift = program.lift, None  # which would see the batch of the module again
    narrowing = _Narrowing(program)
    program.statements = [part for statement in program.statements for part in narrowing.add(statement)]
    program.save_instead({name: array.name for name, array in narrowing.same.items()})
    program.lift = lift


@dataclass(slots=True)
class _Narrowing:
    """`narrow` are arrays without their first dimension, by the names of those that have it; `same` are arrays that
    others are, element for element."""

    program: ArrayProgram
    narrow: dict[str, Array] = field(default_factory=dict)
    same: dict[str, Array] = field(default_factory=dict)

    def add(self, statement: Statement) -> list[Statement]:
        """What stands in place of a statement."""
        if not self.same.keys().isdisjoint(statement.operands):
            statement = self._rename(statement)
        origin = self.program.origins.get(statement.names[0])
        if origin is None or len(statement.names) > 1 or origin.result.rank < 1:
            return [statement]
        result = origin.result
        if origin.operation == "reshape" and isinstance(origin.arguments[0], Array):
            source: Array = origin.arguments[0]
            base = self.narrow.get(source.name)
            if result.shape == (_SINGLE_BATCH, *source.shape):
                self.narrow[result.name] = source
                return [statement]
            if base is not None and (base.shape, base.dims) == (result.shape, result.dims):
                self.same[result.name] = base
                return [statement]
        computed: list[Array] = []

        def compute() -> Array | None:
            narrowed = self._compute(origin)
            if narrowed is None or result.shape[0] != _SINGLE_BATCH:
                return narrowed
            computed.append(narrowed)
            return reshape(self.program, narrowed, result.shape, result.name, result.dims)

        added = self.program.rewrite(result, compute)
        if added and computed:
            self.narrow[result.name] = computed[0]
        return added or [statement]

    def _rename(self, statement: Statement) -> Statement:
        """The statement, and the origins of its results, with the arrays that others are."""

        def find(value: Any) -> Any:
            if isinstance(value, Array):
                return self.same.get(value.name, value)
            return [find(item) for item in value] if isinstance(value, list) else value

        for name in statement.names:
            if (origin := self.program.origins.get(name)) is not None:
                self.program.origins[name] = replace(origin, arguments=tuple(map(find, origin.arguments)))
        names = (self.same[name].name if name in self.same else name for name in statement.operands)
        return replace(statement, operands=tuple(names))

    def _compute(self, origin: Origin) -> Array | None:
        """What an operation makes, without the first dimension if that is a batch; None where nothing is gained."""
        program, result = self.program, origin.result
        hint = program.names.bases[result.name]
        is_batch = result.shape[0] == _SINGLE_BATCH
        if origin.operation in SCALAR_FORMS or origin.operation == "where":
            operands = [self._drop(operand, result.rank) for operand in origin.arguments]
            if not is_batch or any(operand is None for operand in operands):
                return None
            if origin.operation == "where":
                condition, positive, negative = operands[:3]
                return where(program, condition, positive, negative, hint)
            return apply(program, origin.operation, *operands, hint=hint)
        first, *further = origin.arguments or (None,)
        if origin.operation == "concat":
            parts, axis = [self.narrow.get(part.name) for part in first], normalize_axis(further[0], result.rank)
            known = [part for part in parts if part is not None]
            return concat(program, known, axis - 1, hint) if axis and len(known) == len(parts) else None
        base = self.narrow.get(first.name) if isinstance(first, Array) else None
        if base is None:
            return None
        if origin.operation == "reshape":
            return reshape(program, base, result.shape[1:] if is_batch else result.shape, hint)
        if origin.operation == "transpose" and is_batch:
            order = [normalize_axis(axis, result.rank) for axis in further[0]]
            return transpose(program, base, [axis - 1 for axis in order[1:]], hint) if order[0] == 0 else None
        if origin.operation == "slice_axis" and is_batch:
            axis = normalize_axis(further[0], result.rank)
            start, stop, step = (*further[1:4], 1)[:3]
            return slice_axis(program, base, axis - 1, start, stop, step, hint) if axis else None
        turned = program.find_origin(further[0], "transpose") if origin.operation == "matmul" else None
        if turned is not None and turned[0].rank == 2:  # the weight is read as it lies, and nothing turned is left
            return multiply_rows(program, base, turned[0], hint=hint)
        operation, count = _OF_ROWS.get(origin.operation, (None, 0))
        if operation is None or base.rank < 2 or any(isinstance(part, Array) and part.rank > 2 for part in further):
            return None
        return operation(program, base, *further[:count], hint=hint)

    def _drop(self, operand: Any, rank: int) -> Any:
        """An operand of as many dimensions as the result without its first one; None where that is not known."""
        if not isinstance(operand, Array) or operand.rank < rank:
            return operand
        if operand.known is not None and operand.shape[0] == _SINGLE_BATCH:
            return reshape(self.program, operand, operand.shape[1:])
        return self.narrow.get(operand.name)
