"""Aggregations of tuples in Triton: `logsumexp`, `argmax` and `topk`, copy after copy in the order of the plan.

A copy may be empty: of weight -inf in `logsumexp`, and as `runtime.kernels.ranking` says in the others. The first copy
may be the target: where programs share what they read, it is written by a later launch than the one that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from runtime.dtypes import FLOATS, Array, compute
from runtime.errors import PlanFault
from runtime.kernels.base import dtype_name
from runtime.kernels.merge_signature import Copies, average_types, ranked_types, spread
from runtime.kernels.pieces import merged
from runtime.kernels.ranking import INDEX
from runtime.kernels.triton_moves import plan_moves
from runtime.kernels.triton_select import KEYS, select_call
from runtime.kernels.triton_source import LANGUAGE, Call, Operand, Plan, ScratchPlan, assembled, operands, wide
from runtime.kernels.triton_tiles import Tiles, elementwise


def plan_merge_logsumexp(
    copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]], rounded: Array | None = None
) -> Plan:
    """Averages, each with the logarithm of its weight: their weighted average, and the logarithm of all weights.

    Where no copy has any weight, the average is 0 and the weight -inf. Averages are written before logarithms; with
    `rounded`, a view of another floating type, they are written there instead.
    """
    kind = average_types(copies, target)
    rank = target[0].ndim
    logs = [spread(copy[1], dims[1], rank) for copy in copies]
    wide_type = LANGUAGE[compute(kind[0])]
    count = len(copies)
    names = [*(f"x{k}" for k in range(count)), *(f"log{k}" for k in range(count)), "y"]

    def weigh(tile: _Elements) -> list[str]:
        lines = [f"w{k} = {tile.load(f'log{k}')}.to({wide_type})" for k in range(count)]
        lines.append(f"most = {_nested('tl.maximum', [f'w{k}' for k in range(count)])}")
        lines.append('most = tl.where(most == float("-inf"), 0.0, most)')
        lines += [f"w{k} = tl.exp(w{k} - most)" for k in range(count)]
        lines.append(f"total = {' + '.join(f'w{k}' for k in range(count))}")
        return lines

    result = target[0] if rounded is None else rounded
    views = [*(copy[0] for copy in copies), *logs, result]
    averages = _Elements(views, [kind[0]] * count + [kind[1]] * count + [dtype_name(result)], names)
    lines = [
        *weigh(averages),
        "whole = tl.where(total == 0, 1.0, total)",
        *(f"v{k} = {averages.load(f'x{k}')} * (w{k} / whole)" for k in range(count)),
        f"result = {' + '.join(f'v{k}' for k in range(count))}",
        averages.store("y", "result"),
    ]
    first = averages.call("logsumexp", f"{count} weighted averages", lines)
    sums = _Elements([*logs, spread(target[1], dims[1], rank)], [kind[1]] * (count + 1), names[count:])
    lines = [*weigh(sums), sums.store("y", "most + tl.log(total)")]
    return Plan((first, sums.call("logsumexp_weights", f"the logarithms of {count} weights", lines)))


def plan_merge_argmax(copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]]) -> Plan:
    """Indices and values: the larger value wins with its index, of equal values the smaller index."""
    kinds = ranked_types(copies, target, index=0)
    values = [spread(copy[1], dims[1], target[0].ndim) for copy in (*copies, target)]
    count = len(copies)
    names = [*(f"i{k}_ptr" for k in range(count)), "y_ptr", *(f"x{k}" for k in range(count)), "z"]
    views = [*(copy[0] for copy in copies), target[0], *values]
    tile = _Elements(views, [INDEX] * (count + 1) + [kinds[1]] * (count + 1), names)
    lines = [f"best = {tile.load('i0_ptr')}", f"value = {tile.load('x0')}", "rank = key(value)"]
    for k in range(1, count):
        lines += [
            f"index = {tile.load(f'i{k}_ptr')}",
            f"other = {tile.load(f'x{k}')}",
            "key_of_other = key(other)",
            "wins = (key_of_other > rank) | ((key_of_other == rank) & (index < best))",
            "best = tl.where(wins, index, best)",
            "value = tl.where(wins, other, value)",
            "rank = tl.where(wins, key_of_other, rank)",
        ]
    lines += [tile.store("y_ptr", "best"), tile.store("z", "value")]
    ranked = kinds[1] if kinds[1] == "f64" else "f32" if kinds[1] in FLOATS else "int"
    return Plan((tile.call("merge_argmax", f"the largest of {count}", lines, KEYS[ranked]),))


def plan_merge_topk(copies: Copies, target: Sequence[Array], dims: Sequence[Sequence[int]]) -> Plan:
    """Values and indices along the last dimension: the largest of all, in descending order, ties by index."""
    ranked_types(copies, target, index=1)
    if not target[0].ndim:
        raise PlanFault("topk merges lists along a last dimension")
    scratch = ScratchPlan()
    values, indices = (scratch.take(member.shape, member.dtype) for member in target)
    found = select_call("merge_topk", [copy[0] for copy in copies], [copy[1] for copy in copies], values, indices)
    return Plan((found, *plan_moves([values, indices], target).steps), scratch.size)


def _nested(function: str, values: Sequence[str]) -> str:
    nested = values[0]
    for value in values[1:]:
        nested = f"{function}({nested}, {value})"
    return nested


class _Elements:
    """Tiles over views of one rank, and the lines that load and store their elements; the last view is a target."""

    def __init__(self, views: Sequence[Array], kinds: Sequence[str], names: Sequence[str]) -> None:
        layouts, _ = merged(views, [False] * views[0].ndim)
        self.extents = layouts[-1].shape
        self.items = {item.name: item for item in operands(layouts, kinds, names)}
        *reads, target = self.items.values()
        self.tiles: Tiles = elementwise(self.extents, reads, target)

    def _at(self, item: Operand) -> tuple[str, str]:
        subscripts = self.tiles.subscripts(item)
        return item.at(subscripts), self.tiles.mask(subscripts)

    def load(self, name: str) -> str:
        item = self.items[name]
        at, mask = self._at(item)
        return f"tl.load({at}{f', mask={mask}, other=0' if mask else ''}){item.load_suffix}"

    def store(self, name: str, value: str) -> str:
        item = self.items[name]
        at, mask = self._at(item)
        return f"tl.store({at}, ({value}).to({LANGUAGE[item.dtype]}){f', mask={mask}' if mask else ''})"

    def call(self, name: str, title: str, lines: Sequence[str], helpers: str = "") -> Call:
        items = list(self.items.values())
        where = self.tiles.locate(wide(items, self.extents))
        return assembled(name, title, items, self.extents, [*where, *lines], self.tiles.count(), helpers)
