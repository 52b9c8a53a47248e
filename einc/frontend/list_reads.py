"""Lists of integers that are read at an index: `seq_lens[s]`, constants of an equation.

A list that grows evenly is the index times a number plus another one, in positions, too. Any other list becomes a
tensor, whose operator chooses among its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from einc.errors import SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.constants import Static
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue
from einc.frontend.joins import Apply, Element, EquationScope, Join
from einc.ops.base import Attribute
from einc_runtime.plan.index_programs import Position
from einc_runtime.plan.scalar_programs import Operand

MAX_DIFFERENT_ITEMS = (limits.EQUATION_TERMS - 2) // 2
"""The most items of a list that does not grow evenly: each but the first takes two operations of an equation."""


def find_list(context: LoweringContext, syntax: ast.IndexedExpr) -> tuple[Attribute, ...] | None:
    """The list that is read; None where it is none."""
    name = syntax.base.text if isinstance(syntax.base, ast.Name) else ""
    value = context.scope.owner(name).values.get(name, context.parameters.values.get(name))
    return value if isinstance(value, tuple) else None


def find_progression(items: Sequence[Attribute]) -> tuple[int, int] | None:
    """The first of some integers, and by how much each next one is larger; None where that differs."""
    if not items or any(type(item) is not int for item in items):
        return None
    numbers = [int(item) for item in items if isinstance(item, int)]
    steps = {after - before for before, after in pairwise(numbers)}
    return (numbers[0], next(iter(steps), 0)) if len(steps) < 2 else None


def read_list_position(context: LoweringContext, scope: EquationScope, syntax: ast.IndexedExpr) -> Position | None:
    """The item of a list that grows evenly, as a position; None for anything else."""
    items = find_list(context, syntax)
    progression = None if items is None else find_progression(items)
    if items is None or progression is None:
        return None
    (first, step), index = progression, _find_index(context, scope, items, syntax)
    return Position(((index, step),) if step else (), first)


def read_list_item(
    context: LoweringContext, join: Join, items: Sequence[Attribute], syntax: ast.IndexedExpr, apply: Apply
) -> Element:
    """The item of a list at one index vector: an i64, or a number where all items are the same.

    `apply` adds the operator of a list that does not grow evenly.
    """
    index = _find_index(context, join.scope, items, syntax)
    progression = find_progression(items)
    if progression is None:
        key = tuple(items)
        if key not in join.scope.lists:
            join.scope.lists[key] = _write_list(context, join.scope, items, index, syntax.span, apply)
        return join.read(join.scope.lists[key], (Position(((index, 1),)),), syntax.span)
    first, step = progression
    if not step:
        return first
    scaled: Operand = join.read_index(index, syntax.span)
    scaled = scaled if step == 1 else join.program.add("mul", scaled, step)
    return join.program.add("add", scaled, first) if first else scaled


def list_conditions(
    context: LoweringContext, scope: EquationScope, items: Sequence[ast.IndexItem]
) -> list[ast.BinaryExpr]:
    """The conditions under which is aggregated, but for those that always hold. Keeps extents that lists give."""
    conditions = [item.value for item in items if isinstance(item.value, ast.BinaryExpr)]
    return [condition for condition in conditions if not _bound_by_list(context, scope, condition)]


def _bound_by_list(context: LoweringContext, scope: EquationScope, condition: ast.BinaryExpr) -> bool:
    """Gives the index of `i < lens[s]` the extent of the largest item. Returns whether the condition always holds."""
    bound = condition.right
    items = find_list(context, bound) if isinstance(bound, ast.IndexedExpr) else None
    if items is None or condition.operator != "<" or not isinstance(condition.left, ast.Name):
        return False
    assert isinstance(bound, ast.IndexedExpr)
    _find_index(context, scope, items, bound)
    numbers = _require_integers(context, items, condition.right.span)
    if min(numbers) < 1:
        raise context.findings.fail(f"an extent is at least 1, found {min(numbers):,}", condition.right.span)
    scope.extents.setdefault(condition.left.text, max(numbers))
    return len(set(numbers)) == 1 and scope.extents[condition.left.text] <= numbers[0]


def _find_index(
    context: LoweringContext, scope: EquationScope, items: Sequence[Attribute], syntax: ast.IndexedExpr
) -> str:
    """The index at which a list is read; it has no more positions than the list has items."""
    _require_integers(context, items, syntax.span)
    item = syntax.indices[0] if len(syntax.indices) == 1 else None
    is_index = item is not None and item.dimension is None and item.extent is None
    if item is None or not is_index or not isinstance(item.value, ast.Name) or item.value.text not in scope.indices:
        raise context.findings.fail("a list is read at one index", syntax.span, "such as `lengths[s]`")
    scope.list_extents[item.value.text] = min(len(items), scope.list_extents.get(item.value.text, len(items)))
    return item.value.text


def _require_integers(context: LoweringContext, items: Sequence[Static], span: SourceSpan) -> list[int]:
    numbers = [item for item in items if isinstance(item, int) and not isinstance(item, bool)]
    if len(numbers) < len(items) or not items:
        wrong = next((item for item in items if isinstance(item, bool) or not isinstance(item, int)), None)
        described = "an empty list" if wrong is None else constants.describe_value(wrong)
        raise context.findings.fail(f"a list that is read at an index has integers, found {described}", span)
    return numbers


def _write_list(
    context: LoweringContext,
    scope: EquationScope,
    items: Sequence[Attribute],
    index: str,
    span: SourceSpan,
    apply: Apply,
) -> TensorValue:
    """The items as a tensor: the last one, unless the index is below the end of an earlier one."""
    numbers = _require_integers(context, items, span)
    if len(numbers) > MAX_DIFFERENT_ITEMS:
        message = f"a list of {len(numbers):,} items is read at an index; at most {MAX_DIFFERENT_ITEMS:,} are supported"
        raise context.findings.fail(message, span, "make it an input")
    join = Join(EquationScope(scope.indices, {index: len(numbers)}))
    value = join.read_index(index, span)
    chosen = join.program.add("add", join.program.add("mul", value, 0), numbers[-1])
    for number in range(len(numbers) - 2, -1, -1):
        if numbers[number] != numbers[number + 1]:
            chosen = join.program.add("where", join.program.add("le", value, number), numbers[number], chosen)
    return apply(context, join, chosen, span)
