"""The kernel `topk` {axis} in Triton: indices in the whole tensor, ranked as in `calls/ranking.py`.

Values are ranked by integers of their width (`key` in the sources). The list of the largest values is found one by one:
each is the first of those that are ranked after the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import FLOATS, Array, compute_type
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls import ranking
from einc_runtime.kernels.calls.ranking import NO_INDEX
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
    power_of_two,
)
from einc_runtime.kernels.triton.tiles import TILE_ELEMENTS, TileGrid
from einc_runtime.kernels.views import merge_leading_axes

_FLOAT_KEY = '''
@triton.jit
def key(value):
    """Integers that ascend as floats do; the sign of 0 and kinds of NaN are gone."""
    bits = (value{widened} + 0.0).to({integer}, bitcast=True)
    bits = tl.where(bits == {lowest}, 0, bits)
    ordered = tl.where(bits < 0, bits ^ {highest}, bits)
    return tl.where(value != value, {highest}, ordered)


@triton.jit
def value_of(rank):
    """What has this key; below all keys is minus infinity, too."""
    bits = tl.where(rank < 0, rank ^ {highest}, rank)
    return tl.where(rank == {lowest}, float("-inf"), bits.to({number}, bitcast=True))
'''

KEY_FUNCTIONS = {
    "f32": _FLOAT_KEY.format(
        widened=".to(tl.float32)", integer="tl.int32", number="tl.float32", lowest=-(2**31), highest=2**31 - 1
    ),
    "f64": _FLOAT_KEY.format(widened="", integer="tl.int64", number="tl.float64", lowest=-(2**63), highest=2**63 - 1),
    "int": """
@triton.jit
def key(value):
    return value


@triton.jit
def value_of(rank):
    return rank
""",
}
"""Functions between values and integers, by the type that values are ranked in (`ranking_type`)."""


def ranking_type(kind: str) -> str:
    """The type in which values are ranked: f32 for f16 and bf16; integers are ranked as they are."""
    return compute_type(kind) if kind in FLOATS else "int"


def build_topk(invocation: Invocation[Array]) -> LaunchSequence:
    """As many values and indices as the outputs have along their last axis; missing ones are filled in."""
    call = ranking.parse_topk(invocation)
    return LaunchSequence((launch_ranking("topk", [call.source], [], call.values, call.indices, call.first),))


def launch_ranking(
    name: str, sources: Sequence[Array], numbers: Sequence[Array], values: Array, indices: Array, first: int = 0
) -> KernelLaunch:
    """One program for every row of the sources: it finds as many of the largest values as the outputs have.

    The index of an element is read from `numbers`; without these it is the position plus `first`.
    """
    arrays = [*sources, *numbers, values, indices]
    views = merge_leading_axes(arrays)
    names = [f"x{k}" for k in range(len(sources))] + [f"numbers{k}" for k in range(len(numbers))]
    items = [PointerOperand.of(name, view) for name, view in zip((*names, "values", "indices"), views, strict=True)]
    by_name = {item.name: item for item in items}
    leading, count = views[0].shape[:-1], values.shape[-1]
    tiles = TileGrid((*leading, 1), None, None, 1, 1)
    width = min(power_of_two(max(source.shape[-1] for source in sources)), 2 * TILE_ELEMENTS)
    kind = items[0].dtype
    ranked = ranking_type(kind)
    bits = 32 if ranked == "f32" or kind == "i32" else 64
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    cast = index_cast(items, (*leading, max(view.shape[-1] for view in views)))

    def element(item: str, position: str) -> str:
        places = {axis: f"i{axis}" for axis in range(len(leading))} | {len(leading): f"{position}"}
        return by_name[item].at({axis: text for axis, text in places.items() if by_name[item].strides[axis]})

    lines = [
        *tiles.locate(cast),
        f"last_rank = tl.full([], {highest}, tl.int{bits})",
        f"last_place = tl.full([], {-(2**63)}, tl.int64)",
        f"for n in range(0, {count}):",
        f"    best_rank = tl.full([{width}], {lowest}, tl.int{bits})",
        f"    best_place = tl.full([{width}], {NO_INDEX}, tl.int64)",
    ]
    for k, source in enumerate(sources):
        extent = source.shape[-1]
        inside = f"(k < {extent})" if extent % width else ""
        where = mask_arguments(inside, fallback="0")
        position = f"tl.load({element(f'numbers{k}', 'k')}{where})" if numbers else f"k.to(tl.int64) + {first}"
        lines += [
            f"    for start in range(0, {extent}, {width}):",
            f"        k = start + tl.arange(0, {width}){cast}",
            f"        rank = key(tl.load({element(f'x{k}', 'k')}{where}))",
            f"        place = {position}",
            "        rest = (rank < last_rank) | ((rank == last_rank) & (place > last_place))",
            "        better = (rank > best_rank) | ((rank == best_rank) & (place < best_place))",
            f"        better = better & rest{f' & {inside}' if inside else ''}",
            "        best_rank = tl.where(better, rank, best_rank)",
            "        best_place = tl.where(better, place, best_place)",
        ]
    nth = "tl.cast(n, tl.int64)" if cast else "n"
    lines += [
        "    last_rank = tl.max(best_rank, 0)",
        f"    last_place = tl.min(tl.where(best_rank == last_rank, best_place, {NO_INDEX}), 0)",
        f"    tl.store({element('values', nth)}, value_of(last_rank).to({LANGUAGE[kind]}))",
        f"    tl.store({element('indices', nth)}, last_place)",
    ]
    title = f"{name}: the first {count} of rows of {sources[0].shape[-1]}"
    return assemble(name, title, items, views[0].shape, lines, tiles.count(), LaunchOptions(KEY_FUNCTIONS[ranked]))
