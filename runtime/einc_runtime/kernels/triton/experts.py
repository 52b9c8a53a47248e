"""The kernel `expert_matmul` in Triton: slots are sorted by their experts, and one launch multiplies all groups.

The first launch counts the slots of each expert, the second one writes their numbers expert after expert, in their
order. Each program of the third one computes a tile of the results of one expert, which it finds from the counts: there
are as many programs as picks of any kind could need, and those that are left over do nothing. Few slots need no order:
the program of the first slot with an expert computes all others with it. Of a quantized weight, tiles are read as they
are stored, and widened in registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.calls.quantized import QuantizedWeight
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, StatusPointer, WorkspaceAllocator
from einc_runtime.kernels.triton.ordered_products import OrderedTile
from einc_runtime.kernels.triton.quantized import find_step, multiply_step, name_stored
from einc_runtime.kernels.triton.source import (
    LANGUAGE,
    LINE_ELEMENTS,
    LaunchOptions,
    PointerOperand,
    assemble,
    index_cast,
    mask_arguments,
    power_of_two,
)

MAX_UNSORTED_SLOTS = 64
"""Up to so many slots are multiplied without being sorted."""
MAX_EXPERTS = 1 << 14
"""A program reads the counts of all experts at once."""


def build_expert_matmul(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch for few slots, else three or four."""
    call = ExpertMatmulCall.parse(invocation)
    sources = _Sources(call)
    if call.picks.size <= MAX_UNSORTED_SLOTS:
        return LaunchSequence((sources.multiply_few(),), status_message=call.status_message)
    return sources.multiply_sorted(_choose_tile(call, sources.kind))


def build_ordered_expert_matmul(invocation: Invocation[Array]) -> LaunchSequence:
    """As for other plans, with a tile that the types and the extent of k choose: each element is one chain over k."""
    call = ExpertMatmulCall.parse(invocation)
    sources = _Sources(call)
    return sources.multiply_sorted(OrderedTile.choose(sources.kind, call.weight.shape[2]))


def _choose_tile(call: ExpertMatmulCall, kind: str) -> OrderedTile:
    """By the rows that an expert has if picks are spread evenly."""
    even, depth = call.picks.size // call.experts, max(16, power_of_two(call.weight.shape[2]))
    if kind == "f64":
        return OrderedTile(32, 32, 16, 4, 2)
    if kind == "f32":
        return OrderedTile(64 if even >= 24 else 16, 64, min(depth, 32), 4, 3)
    if even >= 96:
        return OrderedTile(128, 128, min(depth, 64), 8, 3)
    return OrderedTile(64, 128, min(depth, 64), 4, 4) if even >= 24 else OrderedTile(16, 64, min(depth, 128), 4, 4)


class _Sources:
    """Writes the launches of one invocation."""

    def __init__(self, call: ExpertMatmulCall) -> None:
        if call.count > MAX_EXPERTS:
            raise PlanFault(f"{call.count:,} experts on a GPU; at most {MAX_EXPERTS:,} are supported")
        self.call = call
        self.tokens, self.slots = call.picks.shape
        shape: tuple[int, ...] = call.weight.shape
        self.experts, self.width, self.depth = shape
        arrays = {"x": call.rows, "picks": call.picks, "y": call.target}
        self.x, self.picks, self.y = (PointerOperand.of(name, array) for name, array in arrays.items())
        if isinstance(call.weight, QuantizedWeight):
            matrices = [_view_as_matrices(array, self.experts) for array in call.weight.operands]
            self.weight, self.kind = name_stored(call.weight, matrices), self.x.dtype
        else:
            matrices, self.weight = [call.weight], [PointerOperand.of("weight", call.weight)]
            kinds = {self.x.dtype, self.weight[0].dtype}
            self.kind = self.x.dtype if len(kinds) == 1 else "f64" if "f64" in kinds else "f32"
        items = zip([self.x, self.picks, self.y, *self.weight], [*arrays.values(), *matrices], strict=True)
        self.cast = next(filter(None, (index_cast([item], array.shape) for item, array in items)), "")
        self.title = f"{call.picks.size} slots, experts {call.lower} to {call.lower + self.experts} of {call.experts}"

    def multiply_sorted(self, tile: OrderedTile) -> LaunchSequence:
        scratch = WorkspaceAllocator()
        integers = np.dtype(np.int32)
        counts = PointerOperand.of("counts", scratch.take((self.experts,), integers))
        order = PointerOperand.of("order", scratch.take((self.call.picks.size,), integers))
        steps = [self._count(counts), self._sort(counts, order), self._multiply(counts, order, tile)]
        if not self.call.is_whole:
            steps.append(self._clear())
        return LaunchSequence(tuple(steps), scratch.size, self.call.status_message)

    def _read_picks(self, slot: str, inside: str) -> str:
        """The expression for the numbers of experts here that slots picked; those of others are out of bounds."""
        at = {0: f"({slot} // {self.slots}){self.cast}", 1: f"({slot} % {self.slots}){self.cast}"}
        nobody = str(self.call.lower - 1)
        return f"tl.load({_locate(self.picks, at)}{mask_arguments(inside, fallback=nobody)}) - {self.call.lower}"

    def _complain(self, local: str, inside: str, indent: str = "") -> str:
        """The line that sets the status word where a pick is no expert."""
        low, high = -self.call.lower, self.call.experts - self.call.lower
        wrong = f"({inside} & (({local} < {low}) | ({local} >= {high}))).to(tl.int32)"
        return f"{indent}tl.store(status, 1, mask=tl.max({wrong}, 0) != 0)"

    def _assemble(
        self,
        name: str,
        items: Sequence[PointerOperand],
        extents: Sequence[int],
        lines: Sequence[str],
        grid: int,
        tile: OrderedTile | None = None,
        *,
        checks: bool = False,
    ) -> KernelLaunch:
        status = [("status", StatusPointer(), "i32")] if checks else []
        options = LaunchOptions(tables=status)
        if tile is not None:
            options = LaunchOptions(tables=status, warps=tile.warps, stages=tile.stages)
        return assemble(name, f"{name}: {self.title}", items, extents, lines, grid, options)

    def _count(self, counts: PointerOperand) -> KernelLaunch:
        """How many slots picked each expert."""
        count = self.call.picks.size
        chunk = min(LINE_ELEMENTS, power_of_two(count))
        lines = [
            "e = tl.program_id(0)",
            f"total = tl.zeros([{chunk}], tl.int32)",
            f"for start in range(0, {count}, {chunk}):",
            f"    place = start + tl.arange(0, {chunk})",
            f"    inside = place < {count}",
            f"    pick = {self._read_picks('place', 'inside')}",
            self._complain("pick", "inside", "    "),
            "    total += (inside & (pick == e)).to(tl.int32)",
            "tl.store(counts + e, tl.sum(total, 0))",
        ]
        return self._assemble(
            "count_experts", [self.picks, counts], self.call.picks.shape, lines, self.experts, checks=True
        )

    def _sort(self, counts: PointerOperand, order: PointerOperand) -> KernelLaunch:
        """The numbers of slots, expert after expert: each program writes those of one expert, behind all before it."""
        count = self.call.picks.size
        chunk = min(LINE_ELEMENTS, power_of_two(count))
        lines = [
            "e = tl.program_id(0)",
            *self._read_counts(),
            "first = tl.sum(tl.where(number < e, count, 0), 0)",
            f"for start in range(0, {count}, {chunk}):",
            f"    place = start + tl.arange(0, {chunk})",
            f"    inside = place < {count}",
            f"    pick = {self._read_picks('place', 'inside')}",
            "    here = (inside & (pick == e)).to(tl.int32)",
            "    tl.store(order + (first + tl.cumsum(here, 0) - 1), place, mask=here != 0)",
            "    first += tl.sum(here, 0)",
        ]
        return self._assemble("sort_slots", [self.picks, counts, order], self.call.picks.shape, lines, self.experts)

    def _read_counts(self) -> list[str]:
        return [
            f"number = tl.arange(0, {power_of_two(self.experts)})",
            f"count = tl.load(counts + number, mask=number < {self.experts}, other=0)",
        ]

    def _multiply(self, counts: PointerOperand, order: PointerOperand, tile: OrderedTile) -> KernelLaunch:
        """All experts with their rows. Programs of one column of tiles follow each other, so that an expert's weight
        is read once."""
        count = self.call.picks.size
        most = (count + min(self.experts, count) * (tile.rows - 1)) // tile.rows
        columns = -(-self.width // tile.columns)
        lines = [
            "program = tl.program_id(0)",
            f"i = program % {most}",
            *self._read_counts(),
            f"tiles = (count + {tile.rows - 1}) // {tile.rows}",
            "e = tl.sum((tl.cumsum(tiles, 0) <= i).to(tl.int32), 0)",
            "own = tl.sum(tl.where(number == e, count, 0), 0)",
            "first = tl.sum(tl.where(number < e, count, 0), 0)",
            f"row = (i - tl.sum(tl.where(number < e, tiles, 0), 0)) * {tile.rows} + tl.arange(0, {tile.rows})",
            "here = row < own",
            f"slot_number = tl.load(order + first + row, mask=here, other=0){self.cast}",
            f"depth = tl.where(own > 0, {self.depth}, 0)",
            *self._write_product(f"(program // {most})", tile),
        ]
        items = [self.x, *self.weight, counts, order, self.y]
        extents = (*self.call.picks.shape, *self.call.weight.shape)
        return self._assemble("expert_products", items, extents, lines, most * columns, tile)

    def _write_product(self, column: str, tile: OrderedTile) -> list[str]:
        """Lines that multiply the rows of the slots `slot_number`, where `here`, with columns of expert e, and write
        them. `depth` is 0 for a program that has nothing to multiply."""
        token, slot = f"(slot_number // {self.slots})[:, None]", f"(slot_number % {self.slots})[:, None]"
        in_columns = f"(column < {self.width})[None, :]" if self.width % tile.columns else ""
        stored, at = isinstance(self.call.weight, QuantizedWeight), {0: token, 1: slot}
        return [
            f"column = {column} * {tile.columns} + tl.arange(0, {tile.columns}){self.cast}",
            f"sums = tl.zeros([{tile.rows}, {tile.columns}], {LANGUAGE['f64' if self.kind == 'f64' else 'f32']})",
            *(self._write_stored_steps(at) if stored else self._write_steps(at, tile)),
            f"tl.store({_locate(self.y, {**at, 2: 'column[None, :]'})}, sums.to({LANGUAGE[self.y.dtype]})"
            f"{mask_arguments('here[:, None]', in_columns)})",
        ]

    def _write_steps(self, at: Mapping[int, str], tile: OrderedTile) -> list[str]:
        """Lines that go along k, through rows, which are `at` these subscripts, and columns."""
        kind, cast = self.kind, self.cast
        (weight,) = self.weight
        in_columns = f"(column < {self.width})" if self.width % tile.columns else ""
        in_depth = f"(k < {self.depth})" if self.depth % tile.depth else ""
        masks = (
            mask_arguments("here[:, None]", in_depth and f"{in_depth}[None, :]", fallback="0"),
            mask_arguments(in_columns and f"{in_columns}[None, :]", in_depth and f"{in_depth}[:, None]", fallback="0"),
        )
        widened = [f".to({LANGUAGE[kind]})" if item.dtype != kind else "" for item in (self.x, weight)]
        precision = "" if kind in ("f16", "bf16") else ', input_precision="ieee"'
        precision += ", out_dtype=tl.float64" if kind == "f64" else ""
        x = _locate(self.x, {**at, 2: "k[None, :]"})
        matrix = _locate(weight, {0: f"e{cast}", 1: "column[None, :]", 2: "k[:, None]"})
        return [
            f"for start in range(0, depth, {tile.depth}):",
            f"    k = start + tl.arange(0, {tile.depth}){cast}",
            f"    rows = tl.load({x}{masks[0]}){widened[0]}",
            f"    matrix = tl.load({matrix}{masks[1]}){widened[1]}",
            f"    sums = tl.dot(rows, matrix, sums{precision})",
        ]

    def _write_stored_steps(self, at: Mapping[int, str]) -> list[str]:
        """The same through stored values, of which each has one or two elements of k."""
        weight = self.call.weight
        assert isinstance(weight, QuantizedWeight)
        packing, step = weight.packing, find_step(weight)
        near = f"place < {self.depth // packing}"
        lines = [
            f"number = e{self.cast}",
            f"for start in range(0, depth // {packing}, {step}):",
            f"    place = start + tl.arange(0, {step}){self.cast}",
        ]
        for half in range(packing):
            x = _locate(self.x, {**at, 2: f"(place * {packing} + {half})[None, :]"})
            mask = mask_arguments("here[:, None]", f"({near})[None, :]", fallback="0")
            lines.append(f"    part{half} = tl.load({x}{mask})")
        inside = f"column < {self.width}"
        multiplied = multiply_step(weight, self.weight, self.kind, step, inside, near, "sums")
        return [*lines, *(f"    {line}" for line in multiplied)]

    def _clear(self) -> KernelLaunch:
        """Zeros for the slots that picked experts which are not here."""
        count = self.call.picks.size
        height, width = 8, min(256, power_of_two(self.width))
        across = -(-self.width // width)
        at = {0: f"(place // {self.slots})[:, None]", 1: f"(place % {self.slots})[:, None]", 2: "column[None, :]"}
        lines = [
            "program = tl.program_id(0)",
            f"place = (program // {across}) * {height} + tl.arange(0, {height})",
            f"column = (program % {across}) * {width} + tl.arange(0, {width})",
            f"inside = place < {count}",
            f"pick = {self._read_picks('place', 'inside')}",
            f"away = inside & ((pick < 0) | (pick >= {self.experts}))",
            f"place = place{self.cast}",
            f"zeros = tl.zeros([{height}, {width}], {LANGUAGE[self.y.dtype]})",
            f"tl.store({_locate(self.y, at)}, zeros, mask=away[:, None] & (column < {self.width})[None, :])",
        ]
        grid = -(-count // height) * across
        return self._assemble("clear_slots", [self.picks, self.y], self.call.target.shape, lines, grid)

    def multiply_few(self) -> KernelLaunch:
        """One launch: all slots are rows of each program, which computes those with the expert of its own slot, unless
        there is one before it. Slots with experts that are not here become zeros."""
        count = self.call.picks.size
        rows, depth = max(16, power_of_two(count)), max(16, power_of_two(self.depth))
        narrow = self.kind in ("f16", "bf16")
        tile = OrderedTile(rows, 32, min(depth, 128 if narrow else 32), 4, 4 if narrow else 3)
        lines = [
            "program = tl.program_id(0)",
            f"i = program % {count}",
            f"slot_number = tl.arange(0, {rows})",
            f"inside = slot_number < {count}",
            f"pick = {self._read_picks('slot_number', 'inside')}",
            self._complain("pick", "inside"),
            "e = tl.sum(tl.where(slot_number == i, pick, 0), 0)",
            "alike = inside & (pick == e)",
            "before = tl.max((alike & (slot_number < i)).to(tl.int32), 0)",
            "here = alike & (before == 0)",
            f"there = (before == 0) & (e >= 0) & (e < {self.experts})",
            f"depth = tl.where(there, {self.depth}, 0)",
            f"slot_number = slot_number{self.cast}",
            *self._write_product(f"(program // {count})", tile),
        ]
        items = [self.x, *self.weight, self.picks, self.y]
        extents = (*self.call.picks.shape, *self.call.weight.shape)
        grid = count * -(-self.width // tile.columns)
        return self._assemble("expert_products", items, extents, lines, grid, tile, checks=True)


def _view_as_matrices(array: Array, count: int) -> Array:
    """What is stored of the matrices of so many experts, as matrices: of extent 1 where it lacks a dimension."""
    stack = array.reshape(*array.shape, *[1] * (3 - array.ndim))
    return np.broadcast_to(stack, (count, *stack.shape[1:]))


def _locate(item: PointerOperand, subscripts: Mapping[int, str]) -> str:
    """The addresses of a tile that has all of its subscripts' positions, also along axes of stride 0."""
    return " + ".join([item.name, *(f"{subscript} * {item.strides[axis]}" for axis, subscript in subscripts.items())])
