"""Well-known plans of a graph, built from its structure: what a person would try first.

A baseline ranks the indices of every operator, and takes of the operator's candidates the one that cuts the first of
them as often as possible, then the second, and so on. So where an index cannot be cut into one part per site, the
nearest possible thing happens. The ranks follow from the axes of the graph (`dimensions`), not from names:

- `single`: everything on one site.
- `data`: everything along an axis whose positions are independent from the inputs to the outputs (a batch).
- `sequence`: everything along the axis that most operators share and that no product's weight has (tokens). Where an
  operator mixes its positions, as attention does, its queries are cut and the keys gathered; `sequence-heads` cuts such
  an operator by another index.
- `megatron`: the products of a pair along the axis between them, so that the first weight is cut by columns, the second
  by rows, and partial results are summed; what lies between the pairs is computed on every site. `megatron-sequence`
  cuts what lies between along the axis of `sequence`.

In a training step, axes are found in the part up to the loss, and gradients are cut along the same ones:

- `data`: everything along the axis of `sequence`, so that gradients of weights are summed; weights, and what the
  optimizer keeps, are whole on every site.
- `fsdp`: the same, with weights, and what the optimizer keeps, cut among the sites.
- `megatron` and `megatron-sequence`: pairs of the part up to the loss; weights that no pair cuts are whole everywhere.
- `fsdp-megatron`, where some sites are nearer to each other than others, as in nodes: `megatron-sequence` among near
  sites, and `fsdp` among groups of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from einc.graph.graph import Graph, TensorKind
from einc.logical.plan import Candidate
from einc.logical.problem import Problem
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.options import BASELINES
from einc.search.dimensions import CutIndex, find_axes

FSDP, FSDP_MEGATRON = "fsdp", "fsdp-megatron"

Chosen = tuple[int, ...]
"""The number of a candidate for every node."""

Wish = tuple[tuple[int, int], ...]
"""What a baseline wants of an operator: positions of indices, the most important first, each with the most intervals
that it should have. Indices that are not listed should stay whole."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A well-known plan, as the number of a candidate for every node; None, with the reason, if there is none.

    `same_as` names an earlier one that is the same plan. Without `spread`, operators that leave sites idle are to stay
    on the sites of those before them (`LogicalPlan.spread`).
    """

    name: str
    chosen: Chosen | None
    reason: str | None = None
    same_as: str | None = None
    spread: bool = True


def build_baselines(
    graph: Graph, problem: Problem, sites: int, names: Iterable[str] | None = None, near: int = 1
) -> tuple[Baseline, ...]:
    """All variants of the named baselines, in the order given; by default of all that such a graph may have. Groups of
    `near` sites are nearer to each other than to others (`count_near_sites`). Raises KeyError for a name that
    `BASELINES` lacks."""
    builder = BaselineBuilder(graph, problem, sites, near)
    if names is None:
        names = [name for name in BASELINES if name != FSDP or builder.forward is not None]
    baselines: list[Baseline] = []
    known: dict[Chosen, str] = {}
    for name in dict.fromkeys(variant for requested in names for variant in BASELINES[requested]):
        if name == FSDP_MEGATRON and near == 1:
            continue
        baseline = builder.build(name)
        if baseline.chosen is not None:
            same = known.setdefault(baseline.chosen, name)
            baseline = replace(baseline, same_as=same if same != name else None)
        baselines.append(baseline)
    return tuple(baselines)


class BaselineBuilder:
    """What the baselines of a graph share: its axes, that of `sequence`, and the pairs of products of `megatron`."""

    def __init__(self, graph: Graph, problem: Problem, sites: int, near: int = 1) -> None:
        self._graph = graph
        self._problem = problem
        self._sites = sites
        self._near = near
        self.axes = find_axes(graph)
        self.forward = _find_forward(graph)
        self._picked: dict[tuple[int, Wish, bool], int] = {}  # by the identity of the candidates: layers repeat them
        self._counts: dict[tuple[int, int], frozenset[int]] = {}

    def build(self, name: str) -> Baseline:
        makers: dict[str, Callable[[], Chosen | str]] = {
            "single": self._build_single,
            "data": self._build_data if self.forward is None else lambda: self._build_data_step(cuts_states=False),
            FSDP: lambda: self._build_data_step(cuts_states=True),
            FSDP_MEGATRON: self._build_groups,
            "sequence": lambda: self._build_sequence(gather=True),
            "sequence-heads": lambda: self._build_sequence(gather=False),
            "megatron": lambda: self._build_megatron(replicated=True),
            "megatron-sequence": lambda: self._build_megatron(replicated=False),
        }
        answer = makers[name]()
        return (
            Baseline(name, None, answer) if isinstance(answer, str) else Baseline(name, answer, spread=name != "single")
        )

    def _build_single(self) -> Chosen | str:
        chosen = []
        for node, options in zip(self._graph.nodes, self._problem.candidates, strict=True):
            counts = [len(candidate.functions) for candidate in options]
            if min(counts) > 1:
                return f"operator {node.name} has no cut for one site"
            chosen.append(counts.index(1))
        return tuple(chosen)

    def _build_data(self) -> Chosen | str:
        axis = self.axes.batch
        if axis is None:
            return self.axes.explain_no_batch(self._graph)
        cap, node = self._find_common_count(axis)
        if cap < 2:
            return f"operator {node} cannot be cut along {self._name_axis(axis)}"

        def rank(number: int) -> Wish:
            parallel_indices = [
                (index.position, cap) for index in self.axes.list_indices(number, axis) if index.parallel
            ]
            return tuple(parallel_indices) or self._rank_along(number, None, cap, gather=True)

        return self._choose(rank)

    def _build_data_step(self, cuts_states: bool) -> Chosen | str:
        axis = self.tokens
        if self.forward is None:
            return "it cuts the states of a training step, and there are none"
        if axis is None:
            return "most operators before the loss share no dimension that the weights lack"

        def rank(number: int) -> Wish | None:
            if number in self.axes.members[axis]:
                indices = self.axes.list_indices(number, axis)
                ranked = sorted(indices, key=lambda i: (not i.parallel, not i.spans, -i.extent))
                return tuple((index.position, self._sites) for index in ranked)
            if not cuts_states:
                return None
            ranked = sorted(self.axes.nodes[number], key=lambda i: (not i.parallel, -i.extent, i.position))
            return tuple((index.position, self._sites) for index in ranked)

        return self._choose(rank)

    def _build_sequence(self, gather: bool) -> Chosen | str:
        axis = self.tokens
        if axis is None:
            return "most operators share no dimension that the weights lack"
        if max((index.extent for index in self._list_along(axis)), default=1) < 2:
            return "the dimension that most operators share has one position"
        return self._choose(lambda number: self._rank_along(number, axis, self._sites, gather))

    def _build_megatron(self, replicated: bool) -> Chosen | str:
        pairs = self.pairs
        if not pairs:
            return "no two products with weights share a dimension that can be cut"
        tokens = self.tokens

        def rank(number: int) -> Wish | None:
            if number in pairs:
                axis, cap = pairs[number]
                indices = sorted(self.axes.list_indices(number, axis), key=lambda index: not index.parallel)
                first = [(index.position, cap) for index in indices]
                token_cuts = self._rank_along(number, tokens, self._sites, gather=True)
                return (*first, *(wish for wish in token_cuts if wish[0] not in {position for position, _ in first}))
            return None if replicated else self._rank_along(number, tokens, self._sites, gather=True)

        if replicated and not any(c.replicas > 1 for options in self._problem.candidates for c in options):
            return "no operator may be computed on several sites"
        return self._choose(rank)

    def _build_groups(self) -> Chosen | str:
        """Of a training step: pairs of products among near sites, tokens among groups of these, and states among all
        sites."""
        tokens, pairs, near = self.tokens, self.pairs, self._near
        if self.forward is None or tokens is None or not pairs:
            return "it cuts the pairs of products of a training step by their dimension and by tokens"

        def rank(number: int) -> Wish:
            axis, cap = pairs.get(number, (None, 1))
            paired = [index for index in self.axes.nodes[number] if index.axis == axis and cap % near == 0]
            unpaired = [index for index in self.axes.nodes[number] if index not in paired]
            unpaired.sort(key=lambda i: (i.axis != tokens, not i.parallel, not i.spans, -i.extent, i.position))
            left = self._sites // near if paired else self._sites
            paired.sort(key=lambda index: not index.parallel)
            return (*((index.position, near) for index in paired), *((index.position, left) for index in unpaired))

        return self._choose(rank)

    # Axes

    def _name_axis(self, axis: int) -> str:
        """The name of its first index."""
        first = self.axes.members[axis][0]
        position = next(self.axes.list_indices(first, axis)).position
        return self._graph.nodes[first].operator.indices[position].name

    def _list_along(self, axis: int) -> list[CutIndex]:
        return [index for node in self.axes.members[axis] for index in self.axes.list_indices(node, axis)]

    @cached_property
    def tokens(self) -> int | None:
        """The axis that most operators can be cut along in parallel; one whose positions are mixed goes first."""
        axes = self.axes
        mixed = axes.find_widest(axes.mixed - axes.weighted, self.forward)
        if self.forward is not None and mixed is None:
            return axes.find_widest(frozenset(range(axes.count)) - axes.weighted, self.forward)
        return axes.batch if mixed is None else mixed

    @cached_property
    def pairs(self) -> dict[int, tuple[int, int]]:
        """For every node of a pair of products, or between them: the pair's axis, and the intervals along it.

        Along the axis of a pair, one product's weight is cut in parallel, and another's so that results are partial.
        A last product that has no second one counts, too, if its result leaves the graph or is reduced.
        """
        axes, graph = self.axes, self._graph
        saved = set(graph.outputs)
        firsts: dict[int, int] = {}
        seconds: set[int] = set()
        ends: set[int] = set()
        for number, (node, indices) in enumerate(zip(graph.nodes, axes.nodes, strict=True)):
            if self.forward is not None and number >= self.forward:
                break
            multiplies = any(not index.parallel for index in indices) and _reads_two_floats(node.operator)
            for index in indices:
                if multiplies and index.weighs and index.parallel:
                    firsts.setdefault(index.axis, number)
                if not index.parallel:
                    ends.add(index.axis)
                    if index.weighs:
                        seconds.add(index.axis)
                elif saved.intersection(node.outputs):
                    ends.add(index.axis)
        cut_axes: dict[int, tuple[int, int]] = {}
        for pair_ends in (seconds, ends):
            ready = [axis for axis in firsts if axis in pair_ends]
            extents = {axis: max(index.extent for index in self._list_along(axis)) for axis in ready}
            for axis in sorted(ready, key=lambda axis: (firsts[axis], -extents[axis], axis)):
                if any(node in cut_axes for node in axes.members[axis]):
                    continue
                cap, _ = self._find_common_count(axis)
                if cap > 1:
                    cut_axes.update((node, (axis, cap)) for node in axes.members[axis])
        return cut_axes

    def _find_common_count(self, axis: int) -> tuple[int, str]:
        """The most intervals that every operator along the axis has in some candidate; and one that has no more."""
        common: frozenset[int] | None = None
        for number in self.axes.members[axis]:
            indices = [index for index in self.axes.list_indices(number, axis) if index.parallel]
            indices = indices or list(self.axes.list_indices(number, axis))
            counts = self._list_counts(number, indices[0].position)
            before = max(common) if common else self._sites + 1
            common = counts if common is None else common & counts
            if not common or max(common) < before:
                node = self._graph.nodes[number].name
        return (max(common) if common else 1), node

    def _list_counts(self, number: int, position: int) -> frozenset[int]:
        """The numbers of intervals of one index in the candidates of a node."""
        options = self._problem.candidates[number]
        key = id(options), position
        if key not in self._counts:
            self._counts[key] = frozenset(len(candidate.intervals[position]) for candidate in options)
        return self._counts[key]

    # Ranks and choices

    def _rank_along(self, number: int, axis: int | None, cap: int, gather: bool) -> Wish:
        """Indices of the axis first, then others in parallel, and last those that make partial results.

        An index of the axis that leaves other dimensions of it whole comes after the other parallel ones unless
        `gather`.
        """

        def rank(index: CutIndex) -> tuple[int, int, int]:
            if index.parallel and index.axis == axis:
                tier = 0 if index.spans else 1 if gather else 4
            elif index.parallel:
                tier = 3 if index.axis in self.axes.weighted else 2
            else:
                tier = 5
            return tier, -index.extent, index.position

        ranked = sorted(self.axes.nodes[number], key=rank)
        return tuple((index.position, cap if index.axis == axis else self._sites) for index in ranked)

    def _choose(self, rank: Callable[[int], Wish | None]) -> Chosen:
        """The candidate of every node that fits its wish best; one without a wish is computed on every site."""
        chosen = []
        nodes = zip(self._graph.nodes, self._problem.candidates, strict=True)
        for number, (node, options) in enumerate(nodes):
            wish = rank(number)
            key = id(options), wish or (), wish is None
            if key not in self._picked:
                self._picked[key] = (
                    _pick_whole(options) if wish is None else _pick_nearest(node.operator, options, wish)
                )
            chosen.append(self._picked[key])
        return tuple(chosen)


def count_near_sites(machine: Machine, sites: int) -> int:
    """How many sites make a group whose pairs have the widest links, as a node has; 1 where all pairs have, or where
    not all groups are alike."""
    widest = max(machine.widths.values(), default=0.0)
    groups = {
        frozenset([site, *(peer for peer in range(sites) if machine.widths.get((site, peer)) == widest)])
        for site in range(sites)
    }
    sizes = {len(group) for group in groups}
    is_even = len(sizes) == 1 and sum(map(len, groups)) == sites and len(groups) > 1
    return sizes.pop() if is_even else 1


def _find_forward(graph: Graph) -> int | None:
    """How many nodes a training step has up to its loss, which is its first output; None for any other graph."""
    trained = any(tensor.kind is TensorKind.STATE and tensor.stored is not None for tensor in graph.tensors)
    if not trained:
        return None
    producer, _ = graph.producers()[graph.outputs[0]]
    return graph.positions[producer.name] + 1


def _reads_two_floats(operator: Operator) -> bool:
    """Whether it may be a product: a lookup of rows by index equations aggregates, too, and reads floats once."""
    return sum(tensor.dtype.is_float for tensor in operator.inputs) > 1


def _pick_whole(options: Sequence[Candidate]) -> int:
    """The candidate that cuts least, and of these the one that most sites compute."""
    return min(range(len(options)), key=lambda c: (len(options[c].spec.functions), -options[c].replicas, c))


def _pick_nearest(operator: Operator, options: Sequence[Candidate], wish: Wish) -> int:
    """The candidate with the most intervals along the first index of a wish, then along the second, and so on.

    More intervals than wished are worse than any number up to it. Of equal candidates, that with fewer function
    specifications, which cuts the other indices less, then that with fewer replicas. An index may be cut into as many
    intervals in several ways: then the one counts whose largest function specification has the least work.
    """

    def rate(candidate: Candidate) -> tuple[tuple[int, ...], int]:
        counts = [len(candidate.intervals[position]) for position, _ in wish]
        rated = (count if count <= cap else -count for count, (_, cap) in zip(counts, wish, strict=True))
        return tuple(rated), -len(candidate.functions)

    rates = [rate(candidate) for candidate in options]
    best = max(rates)
    equal = [number for number, rated in enumerate(rates) if rated == best]
    if len(equal) == 1:
        return equal[0]
    return min(equal, key=lambda number: (max(map(operator.flops, options[number].spec.functions)), number))
