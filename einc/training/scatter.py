"""The gradient of a read: for each element of the tensor, the sum over all index vectors that read it.

A read at positions of loops says which index vector reads an element. So its gradient is a join over the elements, in
which each loop stands that can be computed from where an element is: of `x[2 * i + r]`, the element p is read at
i = (p - r) // 2, where p - r is even and i in range. What cannot be computed so (positions that are data) is compared:
index vectors count whose position is that of the element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einc.graph.builder import GraphBuilder
from einc.training.joins import (
    Access,
    JoinDraft,
    Loops,
    TensorAccess,
    add_position,
    find_span,
    is_within,
    list_loops,
    reshape,
    substitute,
    write_join,
)
from einc_runtime.plan.index_programs import NEAREST_ELEMENT, IndexRead, Position
from einc_runtime.plan.scalar_programs import Operand, ScalarInput

_NOTHING = "0"
"""What is read outside of a tensor where that makes a product vanish."""


@dataclass(frozen=True, slots=True)
class _ComparedPosition:
    """The loop `target` over a dimension of some extent is compared with a position, which is the nearest one within
    the dimension where it `is_clipped`, and which may be outside where it `is_guarded`."""

    target: str
    position: Position
    extent: int
    is_clipped: bool
    is_guarded: bool


@dataclass
class _Solution:
    """What stands for each loop that was computed; the loops that are left; what must be compared; and which sums must
    be multiples of a number."""

    solved: dict[str, Position]
    loops: dict[str, int]
    compared: list[_ComparedPosition]
    multiples: list[tuple[Position, int]]
    known: dict[Position, Position]
    """Of each position from which a loop was computed, where it is: at the element."""

    def move(self, position: Position) -> Position | None:
        """A position of the loops that are left; None where no position says that."""
        return self.known.get(position) or substitute(position, self.solved)


def write_scatter(builder: GraphBuilder, join: JoinDraft, access: TensorAccess, value: Operand, name: str) -> str:
    """Adds the gradient of a tensor that a join reads, where `value` is that of what is read at each index vector.

    Returns the name of the tensor, which has the dimensions of the one that is read.
    """
    targets = [_find_free_name(join.loops, f"p{number}") for number in range(len(access.positions))]
    solution = _solve(join, access, value, targets)
    moved, placed = _move(join, solution, value, access)
    result = list(zip(targets, access.desc.dims, strict=True))
    keys = solution.compared
    if len(keys) == 1 and keys[0].position.elements and not keys[0].is_clipped:
        flat = _write_flat(builder, moved, placed, keys[0], result, name)
        if flat is not None:
            return flat
    for key in keys:
        at = add_position(moved, key.position)
        if key.is_clipped:
            at = moved.steps.add("min", moved.steps.add("max", at, 0), key.extent - 1)
        placed = moved.steps.add("where", moved.steps.add("eq", at, moved.value(key.target)), placed, 0.0)
    return write_join(builder, moved, placed, result, "sum", name)


def _list_needed(join: JoinDraft, value: Operand, access: TensorAccess) -> list[int]:
    """The reads on which a value and the positions of a read depend."""
    elements = {number for position in access.positions for number in position.elements}
    return sorted({*join.list_used(value), *elements})


def _solve(join: JoinDraft, access: TensorAccess, value: Operand, targets: Sequence[str]) -> _Solution:
    used = [join.reads[number] for number in _list_needed(join, value, access)]
    solution = _Solution({}, {**dict(zip(targets, access.desc.shape, strict=True)), **join.loops}, [], [], {})
    for target, position, extent in zip(targets, access.positions, access.desc.shape, strict=True):
        is_clipped = access.outside == NEAREST_ELEMENT and not is_within(position, join.loops, extent)
        moved = None if position.elements or is_clipped else substitute(position, solution.solved)
        solution.known[position] = Position(((target, 1),))
        if moved is None or not _solve_position(join, used, solution, moved, target):
            del solution.known[position]
            solution.compared.append(_ComparedPosition(target, position, extent, is_clipped, access.outside != ""))
    if solution.compared:  # where nothing is summed, each element is compared with one key
        for loop in [loop for loop, extent in solution.loops.items() if extent == 1 and loop in join.loops]:
            _try(join, used, solution, loop, Position(()), solution.loops)
    return solution


def _solve_position(
    join: JoinDraft, used: Sequence[Access], solution: _Solution, position: Position, target: str
) -> bool:
    """Computes one of the loops of a position from the element's position; False where that cannot be."""
    loops = dict(solution.loops)
    right: dict[str, int] = {target: position.divisor}
    constant = -position.constant
    inner = Position(position.terms, position.constant)
    if position.divisor != 1:
        right[_add_loop(loops, "s", position.divisor)] = 1
    elif position.modulus:
        span = find_span(inner, loops)
        assert span is not None
        least, most = span[0] // position.modulus, span[1] // position.modulus
        constant += least * position.modulus
        if most > least:
            right[_add_loop(loops, "q", most - least + 1)] = position.modulus
    candidates = sorted(
        (abs(factor), numbers, name, factor)
        for numbers, (name, factor) in enumerate(position.terms)
        if name in join.loops and name not in solution.solved
    )
    for size, _, name, factor in candidates:
        sign = 1 if factor > 0 else -1
        terms = {loop: sign * number for loop, number in right.items()}
        for loop, number in position.terms:
            if loop != name:
                terms[loop] = terms.get(loop, 0) - sign * number
        numerator = Position(tuple((loop, number) for loop, number in terms.items() if number), sign * constant)
        solved_position = replace(numerator, divisor=size)
        if _try(join, used, solution, name, solved_position, loops):
            if size > 1:
                solution.multiples.append((numerator, size))
            return True
    return False


def _add_loop(loops: dict[str, int], name: str, extent: int) -> str:
    name = _find_free_name(loops, name)
    loops[name] = extent
    return name


def _find_free_name(loops: Loops, name: str) -> str:
    while name in loops:
        name += "_"
    return name


def _try(
    join: JoinDraft,
    used: Sequence[Access],
    solution: _Solution,
    name: str,
    solved_position: Position,
    loops: dict[str, int],
) -> bool:
    """Takes a position in place of a loop, if everything that is read and compared can be said so."""
    single = {name: solved_position}
    resolved = {loop: substitute(position, single) for loop, position in solution.solved.items()}
    numerators = [substitute(position, single) for position, _ in solution.multiples]
    if None in resolved.values() or None in numerators:
        return False
    solved: dict[str, Position] = {loop: position for loop, position in resolved.items() if position is not None}
    solved[name] = solved_position
    if any(substitute(key.position, solved) is None for key in solution.compared):
        return False
    left = {loop: extent for loop, extent in loops.items() if loop not in solved}
    elements = {
        number for read in used if isinstance(read, TensorAccess) for p in read.positions for number in p.elements
    }
    for read in used:
        if isinstance(read, IndexRead):
            continue
        moved = [solution.known.get(position) or substitute(position, solved) for position in read.positions]
        if None in moved:
            return False
        is_element = any(join.reads[number] == read for number in elements)
        if is_element and not all(
            position is not None and position.is_affine and is_within(position, left, extent)
            for position, extent in zip(moved, read.desc.shape, strict=True)
        ):
            return False
    solution.solved = solved
    solution.multiples = [
        (position, size)
        for position, (_, size) in zip(numerators, solution.multiples, strict=True)
        if position is not None
    ]
    solution.loops = left
    return True


def _move(join: JoinDraft, solution: _Solution, value: Operand, access: TensorAccess) -> tuple[JoinDraft, Operand]:
    """The join over the elements, and the value there: 0 where no index vector reads the element so.

    What is compared becomes positions of that join.
    """
    moved = JoinDraft(solution.loops)
    used = _list_needed(join, value, access)
    ranges = {loop: position for loop, position in solution.solved.items() if not _is_in_range(join, solution, loop)}
    scalar = join.program(value)
    accesses = [join.reads[number] for number in used]
    vanishing = _find_vanishing(join, accesses, ranges) if _is_product(join, value) else set()
    numbers: dict[int, Operand] = {}
    elements = {
        number for read in accesses if isinstance(read, TensorAccess) for p in read.positions for number in p.elements
    }
    for number in sorted(used, key=lambda number: number not in elements):
        read = join.reads[number]
        if isinstance(read, IndexRead):
            at = solution.solved.get(read.loop)
            numbers[number] = moved.value(read.loop) if at is None else add_position(moved, at)
            continue
        positions = [_move_position(position, numbers, solution) for position in read.positions]
        outside = read.outside
        is_inside = all(map(is_within, positions, [moved.loops] * len(positions), read.desc.shape))
        if not outside and not is_inside and number not in elements:
            outside = _NOTHING if vanishing else NEAREST_ELEMENT
        numbers[number] = moved.add(TensorAccess(read.tensor, read.desc, tuple(positions), outside))
    solution.compared = [
        replace(key, position=_move_position(key.position, numbers, solution)) for key in solution.compared
    ]
    inputs = [numbers.get(number, ScalarInput(0)) for number in range(len(join.reads))]
    result = moved.steps.insert(scalar, inputs)
    conditions = [
        moved.steps.add("eq", moved.steps.add("mod", add_position(moved, position), size), 0)
        for position, size in solution.multiples
    ]
    for loop, position in ranges.items():
        if loop not in vanishing:
            at_ = add_position(moved, position)
            conditions.append(moved.steps.add("ge", at_, 0))
            conditions.append(moved.steps.add("lt", at_, join.loops[loop]))
    for condition in conditions:
        result = moved.steps.add("where", condition, result, 0.0)
    return moved, result


def _move_position(position: Position, numbers: Mapping[int, Operand], solution: _Solution) -> Position:
    """The position of the join over the elements; `place` says which number each read has there."""
    terms = []
    for name, factor in position.terms:
        read = numbers[int(name[1:])] if name[0] == "@" else None
        terms.append((f"@{read.position}" if isinstance(read, ScalarInput) else name, factor))
    moved = solution.move(replace(position, terms=tuple(terms)))
    assert moved is not None, "a loop was replaced that a position cannot do without"
    return moved


def _is_in_range(join: JoinDraft, solution: _Solution, loop: str) -> bool:
    return is_within(solution.solved[loop], solution.loops, join.loops[loop])


def _is_product(join: JoinDraft, value: Operand) -> bool:
    """Whether the value is a product of what is read, so that a factor of 0 makes it vanish."""
    scalar, used = join.program(value).without_unread()
    return scalar.product_factor is not None and not any(isinstance(join.reads[k], IndexRead) for k in used)


def _find_vanishing(join: JoinDraft, accesses: Sequence[Access], ranges: Mapping[str, Position]) -> set[str]:
    """The loops out of whose range a tensor is read outside, where it has zeros: nothing needs to be compared."""
    return {
        loop
        for loop in ranges
        for read in accesses
        if isinstance(read, TensorAccess) and not read.outside
        for position, extent in zip(read.positions, read.desc.shape, strict=True)
        if position == Position(((loop, 1),)) and extent == join.loops[loop] and read.desc.dtype.is_float
    }


def _write_flat(
    builder: GraphBuilder,
    moved: JoinDraft,
    value: Operand,
    key: _ComparedPosition,
    result: Sequence[tuple[str, str]],
    name: str,
) -> str | None:
    """The scatter by data along a single loop: rows are numbered through all loops on which the keys depend.

    None where it is one as it stands, which the runtime's kernels know (`plan.index_patterns.Scatter`), and where
    nothing is summed, so that each element is compared with one key.
    """
    depends = {name for number in key.position.elements for name in list_loops(moved.reads[number])}
    keyed = [loop for loop in moved.loops if loop in depends or loop in key.position.loops]
    targets = dict(result)
    reduced = [loop for loop in moved.loops if loop not in targets]
    if not reduced or (len(keyed) <= 1 and reduced == keyed):
        return None
    grouped = [loop for loop in keyed if loop in targets]
    free = [loop for loop in targets if loop not in grouped and loop != key.target]
    rows = math.prod(moved.loops[loop] for loop in (*grouped, key.target))
    number = add_position(moved, key.position)
    inside = [moved.steps.add("ge", number, 0), moved.steps.add("lt", number, key.extent)] if key.is_guarded else []
    for loop in reversed(grouped):
        stride = math.prod(moved.loops[name] for name in (*grouped[grouped.index(loop) + 1 :], key.target))
        number = moved.steps.add("add", number, moved.steps.add("mul", moved.value(loop), stride))
    for condition in inside:
        number = moved.steps.add("where", condition, number, rows)
    beside = {loop: extent for loop, extent in moved.loops.items() if loop != key.target}
    values = write_join(builder, replace(moved, loops=beside), value, [(loop, loop) for loop in (*keyed, *free)])
    along = {loop: moved.loops[loop] for loop in keyed}
    keys = write_join(builder, replace(moved, loops=along), number, [(loop, loop) for loop in keyed])
    count = math.prod(moved.loops[loop] for loop in keyed)
    values = reshape(builder, values, ["n", *free], [count, *(moved.loops[loop] for loop in free)])
    keys = reshape(builder, keys, ["n"], [count])
    flat = JoinDraft({"row": rows, **{loop: moved.loops[loop] for loop in free}, "n": count})
    at = flat.read(keys, builder.desc(keys), ["n"])
    part = flat.read(values, builder.desc(values), ["n", *free])
    chosen = flat.steps.add("where", flat.steps.add("eq", at, flat.value("row")), part, 0.0)
    order = [*grouped, key.target, *free]
    summed = write_join(builder, flat, chosen, [("row", "row"), *((loop, loop) for loop in free)])
    summed = reshape(builder, summed, order, [moved.loops[loop] for loop in order])
    placed = JoinDraft({loop: moved.loops[loop] for loop in order})
    return write_join(builder, placed, placed.read(summed, builder.desc(summed), order), result, "", name)
