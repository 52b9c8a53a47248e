"""How one invocation of a kernel can be split into several, each of which computes a part of the results.

Together, the parts compute the same elements as the whole invocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from einc_runtime.kernels.base import Invocation
from einc_runtime.plan.index_equations import IndexEquation, Names, parse_index_equation
from einc_runtime.plan.index_patterns import is_running_along
from einc_runtime.plan.index_programs import IndexProgram, Ranges, read_index_program
from einc_runtime.plan.meaning.index import parse_shapes
from einc_runtime.plan.recurrences import RECURRENCE_TEXTS, parse_recurrence
from einc_runtime.plan.schema import Block

Shape = tuple[int, ...]

MANY_ROWS = 64
"""Rows of a part with which a product is computed as fast as with more of them, and from which on it packs columns."""


@dataclass(frozen=True, slots=True)
class SplitAxis:
    """The dimension of an operand that is split, and how many of its elements belong to one position."""

    axis: int
    unit: int = 1


@dataclass(frozen=True, slots=True)
class KernelSplit:
    """`extent` positions that can be divided among parts, of which each should have `least`. An operand with None is
    whole in every part."""

    extent: int
    inputs: tuple[SplitAxis | None, ...]
    outputs: tuple[SplitAxis | None, ...]
    least: int = 1


def find_splits(invocation: Invocation[Shape], order: Sequence[int] = ()) -> list[KernelSplit]:
    """The splits of a valid invocation, by the shapes of its operands, the best first; none for other kernels.

    `order` are the dimensions of the result from the outermost in memory to the innermost, unless they are in order.
    """
    cuts = list(_SPLITS[invocation.name](invocation)) if invocation.name in _SPLITS else []
    if order and invocation.name in _FREELY_CUT:
        cuts.sort(key=lambda cut: order.index(cut.outputs[0].axis) if cut.outputs[0] is not None else 0)
    return cuts


@dataclass(frozen=True, slots=True)
class IndexSplits:
    """The splits of an index program along the dimensions of its result. What a part reads are other blocks than parts
    of those of the whole: windows overlap."""

    program: IndexProgram
    shapes: tuple[Shape, ...]
    ranges: Ranges

    @staticmethod
    def of(invocation: Invocation[Shape]) -> IndexSplits:
        """Of an invocation's attributes and blocks."""
        shapes = parse_shapes(invocation.attribute("shapes", str))
        program = read_index_program(invocation.attribute, shapes)
        (output,) = invocation.output_blocks
        return IndexSplits(program, shapes, program.find_ranges(shapes, invocation.input_blocks, output))

    @property
    def rank(self) -> int:
        return self.program.kept

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions of the result along which parts do no more together than the whole does: a running aggregate
        would be computed again up to the beginning of each part."""
        running = {name for name in self.program.result if is_running_along(self.program, name)}
        return tuple(axis for axis, name in enumerate(self.program.result) if name not in running)

    def extent(self, axis: int) -> int:
        lower, upper = self.ranges[self.program.result[axis]]
        return upper - lower

    def cut(self, axis: int, start: int, stop: int) -> tuple[list[Block], Block]:
        """What a part reads and writes."""
        name = self.program.result[axis]
        first = self.ranges[name][0]
        ranges = {**self.ranges, name: (first + start, first + stop)}
        kept = [ranges[name] for name in self.program.result]
        reads = list(self.program.read_blocks(self.shapes, ranges))
        return reads, Block(tuple(lower for lower, _ in kept), tuple(upper for _, upper in kept))


def add_map(cut: KernelSplit, operands: Sequence[Names], output: Names) -> KernelSplit:
    """The split of a kernel whose result becomes a map's, which has `operands` beside it, none of which has an index
    twice."""
    (way,) = cut.outputs
    assert way is not None
    name = output[way.axis]
    added = tuple(SplitAxis(names.index(name), way.unit) if name in names else None for names in operands)
    return replace(cut, inputs=(*cut.inputs, *added))


def _split_by_index(text: str, result: Shape) -> Iterator[KernelSplit]:
    """Splits along indices of the result that no operand has twice."""
    equation = parse_index_equation(text)
    for axis, name in enumerate(equation.output):
        if all(names.count(name) < 2 for names in equation.inputs):
            axes = tuple(SplitAxis(names.index(name)) if name in names else None for names in equation.inputs)
            yield KernelSplit(result[axis], axes, (SplitAxis(axis),))


def _split_contract(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """Along indices of the first operand, the outermost first, if parts keep many rows: they multiply by one matrix in
    one layout then, and one worker finds in a common cache what the other has read. Else along the indices of the
    operand that has the longest one, the outermost first: it leaves lines together."""
    cuts = list(_split_by_index(invocation.attribute("equation", str), invocation.output))

    def rank(cut: KernelSplit) -> tuple[int, int]:
        operand = next((number for number, way in enumerate(cut.inputs) if way is not None), -1)
        longest = max(rival.extent for rival in cuts if operand < 0 or rival.inputs[operand] is not None)
        way = cut.inputs[operand] if operand >= 0 else None
        return -longest, 0 if way is None else way.axis

    ranked = sorted(cuts, key=rank)
    ways = sorted((way.axis, number) for number, cut in enumerate(cuts) if (way := cut.inputs[0]) is not None)
    of_first = [cuts[number] for _, number in ways]
    if of_first and of_first[0] is not ranked[0]:
        rows = math.prod(cut.extent for cut in of_first)
        yield from (replace(cut, least=-(-MANY_ROWS * cut.extent // rows)) for cut in of_first)
    yield from ranked


def _split_quantized(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """Rows of the weight or of the tensor: values, scales and zero points have the weight's leading indices."""
    equation = parse_index_equation(invocation.attribute("equation", str))
    tensor, weight = equation.inputs
    labels = (tensor, *(weight[: len(shape)] for shape in invocation.inputs[1:]))
    return _split_operands(equation, labels, invocation.output)


def _split_rounded(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """The same; the largest elements, where there are some, have those indices of the tensor that the result has."""
    equation = parse_index_equation(invocation.attribute("equation", str))
    tensor, weight = equation.inputs
    groups_alone = len(invocation.inputs) == 3
    kept = [] if groups_alone else [tuple(name for name in tensor if name in equation.output)]
    labels = (tensor, *kept, *(weight[: len(shape)] for shape in invocation.inputs[1 + len(kept) :]))
    return _split_operands(equation, labels, invocation.output)


def _split_operands(equation: IndexEquation, labels: Sequence[Names], result: Shape) -> Iterator[KernelSplit]:
    """Splits along each index of the result, those of the weight first."""
    cuts = {}
    for axis, name in enumerate(equation.output):
        axes = tuple(SplitAxis(names.index(name)) if name in names else None for names in labels)
        cuts[name] = KernelSplit(result[axis], axes, (SplitAxis(axis),))
    weight = equation.inputs[1]
    yield from (cuts.pop(name) for name in weight if name in cuts)  # the first one leaves the rows of a part dense
    yield from sorted(cuts.values(), key=lambda cut: -cut.extent)


def _split_experts(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """By rows of the experts' matrices, which leaves each expert its tokens; or by tokens, or by slots."""
    rows, *stored, (tokens, slots) = invocation.inputs
    columns = SplitAxis(2 if invocation.attributes.get("transposed") else 1)
    of_stored = tuple(columns if len(shape) > 1 else None for shape in stored)
    yield KernelSplit(invocation.output[2], (None, *of_stored, None), (SplitAxis(2),))
    for axis, extent in enumerate((tokens, slots)):
        of_rows = SplitAxis(axis) if len(rows) == 3 or axis == 0 else None
        yield KernelSplit(extent, (of_rows, *(None for _ in stored), SplitAxis(axis)), (SplitAxis(axis),))


def _split_map(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    yield from _split_by_index(invocation.attribute("indices", str), invocation.output)


def _split_rows(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """Splits between rows: the first operand and the result are split, vectors of a row's length are not."""
    for axis, extent in enumerate(invocation.output[:-1]):
        yield KernelSplit(extent, (SplitAxis(axis), *(None for _ in invocation.inputs[1:])), (SplitAxis(axis),))


def _split_softmax(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    if invocation.attributes["axis"] in (-1, len(invocation.output) - 1):
        yield from _split_rows(invocation)


def _split_rope(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """Positions, where they are an input, are split together with the tokens."""
    tokens = len(invocation.output) - 2
    for axis, extent in enumerate(invocation.output[:-1]):
        positions = tuple(SplitAxis(0) if axis == tokens else None for _ in invocation.inputs[1:])
        yield KernelSplit(extent, (SplitAxis(axis), *positions), (SplitAxis(axis),))


def _split_attention(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """By sequences of several tokens, if all are equally long, since products and maps are cut by tokens, too. By heads
    of keys, each with its heads of queries; or by queries, each of which still sees all of its keys."""
    queries, keys = invocation.inputs[:2]
    extras = invocation.attribute("extras", list)
    q_lens, k_lens = (invocation.attribute(name, list) for name in ("q_lens", "k_lens"))
    equally_long = len({*zip(q_lens, k_lens, strict=True)}) == 1 and q_lens[0] > 1
    in_blocks = "blocks" in extras
    if equally_long and queries[1] == sum(q_lens) and (in_blocks or keys[1] == sum(k_lens)):
        of_query, of_key = SplitAxis(1, q_lens[0]), None if in_blocks else SplitAxis(1, k_lens[0])
        steps = {"mask": k_lens[0], "positions": q_lens[0], "blocks": 1, "spans": q_lens[0]}
        of_extras = (SplitAxis(0, steps[extra]) for extra in extras)
        yield KernelSplit(len(q_lens), (of_query, of_key, of_key, *of_extras), (of_query, of_query))
    of_query, of_key = SplitAxis(0, queries[0] // keys[0]), SplitAxis(0)
    yield KernelSplit(keys[0], (of_query, of_key, of_key, *(None for _ in extras)), (of_query, of_query))
    places = tuple(SplitAxis(0) if extra in ("positions", "spans") else None for extra in extras)
    yield KernelSplit(queries[1], (SplitAxis(1), None, None, *places), (SplitAxis(1), SplitAxis(1)))


def _split_recurrence(invocation: Invocation[Shape]) -> Iterator[KernelSplit]:
    """Along the loops where it may be cut and that all results have, the longest one first: parts of a loop over which
    is aggregated would be parts of a sum."""
    recurrence = parse_recurrence(
        invocation.attribute("loops", str),
        **{name: invocation.attribute(name, list) for name in (*RECURRENCE_TEXTS, "results")},
    )
    operands = [recurrence.loops_of_operand(operand) for operand in range(len(invocation.inputs))]
    results = [recurrence.equations[number].loops for number in recurrence.results]
    cuts = []
    for name in recurrence.cut_loops(len(operands)):
        if all(name in loops for loops in results):
            inputs = tuple(SplitAxis(loops.index(name)) if name in loops else None for loops in operands)
            extent = invocation.outputs[0][results[0].index(name)]
            cuts.append(KernelSplit(extent, inputs, tuple(SplitAxis(loops.index(name)) for loops in results)))
    yield from sorted(cuts, key=lambda cut: -cut.extent)


_FREELY_CUT = frozenset({"map", "reduce", "rmsnorm", "layernorm", "softmax", "rope"})
"""Kernels that may be cut along any dimension: best along the outermost one in memory, whose parts are dense."""

_SPLITS: dict[str, Callable[[Invocation[Shape]], Iterator[KernelSplit]]] = {
    "contract": _split_contract,
    "quantized_contract": _split_quantized,
    "rounded_contract": _split_rounded,
    "expert_matmul": _split_experts,
    "map": _split_map,
    "reduce": _split_map,
    "rmsnorm": _split_rows,
    "layernorm": _split_rows,
    "softmax": _split_softmax,
    "rope": _split_rope,
    "attention": _split_attention,
    "recurrence": _split_recurrence,
}
