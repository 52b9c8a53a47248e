"""The indices of an equation: those of its result, those that are aggregated over, and extents that are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import evaluate_integer
from einc.frontend.index_positions import CONDITIONS, find_dimension, name_dimension
from einc.frontend.joins import EquationScope, Join, ResultIndex
from einc_runtime.plan.index_programs import MAX_NUMBER


def note_extents(context: LoweringContext, scope: EquationScope, items: Sequence[ast.IndexItem]) -> None:
    """Keeps the extents that items give."""
    for item in items:
        if item.extent is not None and item.name is not None:
            extent = evaluate_integer(context, item.extent, "an extent")
            if not 1 <= extent < MAX_NUMBER:
                raise context.findings.fail(f"an extent is at least 1, found {extent:,}", item.extent.span)
            if scope.extents.setdefault(item.name.text, extent) != extent:
                raise context.findings.fail(f"index '{item.name.text}' has two extents", item.span)


def list_aggregated(context: LoweringContext, items: Sequence[ast.IndexItem]) -> list[ast.Name]:
    """The indices that are aggregated over: alone, with an extent, or with a condition."""
    names = []
    for item in items:
        condition = item.value if isinstance(item.value, ast.BinaryExpr) else None
        name = condition.left if condition is not None and condition.operator in CONDITIONS else item.value
        if not isinstance(name, ast.Name) or item.dimension is not None:
            message = "expected an index to aggregate over"
            raise context.findings.fail(message, item.span, "such as `k`, `k = 8` or `k <= t`")
        names.append(name)
    _check_unique(context, names)
    return names


def list_result(context: LoweringContext, join: Join, items: Sequence[ast.IndexItem]) -> list[ResultIndex]:
    """The indices of a result. With `...`, they are in the order of the dimensions of the first tensor that is read
    with it, and an index that stands for one of these dimensions takes its place."""
    scope = join.scope
    reference = scope.reference if any(item.value is None for item in items) else None
    result: list[ResultIndex] = []
    placed: dict[str, ResultIndex] = {}
    for item in items:
        if item.value is None:
            continue
        if item.name is None:
            hint = "the left side has names, `name = extent`, or `dimension: name`"
            raise context.findings.fail("expected an index of the result", item.span, hint)
        index = ResultIndex(item.name.text, item.name.text, item.span)
        if item.dimension is None:
            result.append(index)
        elif reference is None:
            result.append(replace(index, dim=name_dimension(context, item.dimension)))
        else:
            position = find_dimension(context, item.dimension, reference.dims)
            placed[reference.dims[position]] = replace(index, dim=reference.dims[position])
            scope.extents.setdefault(index.index, reference.shape[position])
    if reference is not None:
        at = next(position for position, item in enumerate(items) if item.value is None)
        before = sum(item.dimension is None for item in items[:at])
        result[before:before] = _spread_result(scope, reference, placed, items[at].span)
    for k, index in enumerate(result):
        if index.index in {earlier.index for earlier in result[:k]}:
            message = f"index '{index.index}' stands twice here"
            raise context.findings.fail(message, index.span, "each index may stand once")
    return result


def _spread_result(
    scope: EquationScope, reference: TensorDesc, placed: Mapping[str, ResultIndex], span: SourceSpan
) -> list[ResultIndex]:
    """What `...` stands for in a result: the dimensions of its tensor, then those of others that are read with it."""
    indices = {dim: name for name, dim in scope.spread.items()}
    result = []
    for dim in (*reference.dims, *(dim for dim in indices if dim not in reference.dims)):
        if dim in placed:
            result.append(placed[dim])
        elif dim in indices:
            result.append(ResultIndex(indices[dim], dim, span))
    return result


def _check_unique(context: LoweringContext, indices: Sequence[ast.Name]) -> None:
    for k, index in enumerate(indices):
        if index.text in {earlier.text for earlier in indices[:k]}:
            message = f"index '{index.text}' stands twice here"
            raise context.findings.fail(message, index.span, "each index may stand once")
