"""Operators over exact integers, random graphs of them, and bodies of exchanges that are right and strange."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from einc.core.intervals import Intervals, ShardableIndex
from einc.core.spec import FunctionSpec, JoinAggSpec, build_tiling
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.exchange.language.checker import check
from einc.exchange.language.closure import order_firings
from einc.exchange.language.printer import print_program
from einc.exchange.language.program import Action, Program
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.logical.plan import Candidate, Choice, LogicalPlan
from einc.machines.model import Machine, Resource, Site
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc.physical.atoms import Inflow, find_inflows
from einc.physical.pieces import count_max_pieces, split_atoms
from einc.physical.preamble import build_preamble
from einc.physical.residency import Residency
from einc.physical.schedule import NaiveScheduler, ScheduledExchange
from einc_runtime.plan.joint_aggregation import AggregationGroup
from einc_runtime.plan.schema import AggregationName, Exchange, Tensor

UFUNC: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@dataclass(frozen=True)
class Formula(MappedOperator):
    """Joins its inputs by `join` over letters and aggregates per output: ("ij", "jk") -> (("ik", "sum"), ...)."""

    terms: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    extents: tuple[tuple[str, int], ...]
    join: str = "prod"
    dtype: DType = DType.I64
    family = "formula"

    def _desc(self, letters: str) -> TensorDesc:
        return TensorDesc(tuple(letters), tuple(dict(self.extents)[letter] for letter in letters), self.dtype)

    @property
    def title(self) -> str:
        return f"{' '.join(self.terms)} -> {' '.join(letters for letters, _ in self.results)}"

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return tuple(map(self._desc, self.terms))

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return tuple(self._desc(letters) for letters, _ in self.results)

    @property
    def attributes(self) -> Attributes:
        return {}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        """Only what every output either has or aggregates in the one way; here: all letters of the inputs."""
        letters = dict.fromkeys("".join(self.terms))
        return tuple(ShardableIndex(letter, dict(self.extents)[letter]) for letter in letters)

    @property
    def aggregations(self) -> tuple[str, ...]:
        return tuple(aggregation for _, aggregation in self.results)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("formula")

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(tuple(DimMap(letter) for letter in term) for term in self.terms)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(tuple(DimMap(letter) for letter in letters) for letters, _ in self.results)

    def flops(self, function: FunctionSpec) -> int:
        return 1

    def reference(self, *arrays: Any) -> tuple[Any, ...]:
        letters = list(dict.fromkeys("".join(self.terms)))
        aligned = []
        for term, array in zip(self.terms, arrays, strict=True):
            order = sorted(range(len(term)), key=lambda d: letters.index(term[d]))
            shape = [array.shape[term.index(letter)] if letter in term else 1 for letter in letters]
            aligned.append(np.transpose(array, order).reshape(shape))
        joined = aligned[0]
        for operand in aligned[1:]:
            joined = UFUNC[self.join](joined, operand)
        results = []
        for kept, aggregation in self.results:
            gone = tuple(d for d, letter in enumerate(letters) if letter not in kept)
            reduced = UFUNC[aggregation].reduce(joined, axis=gone) if gone else joined
            left = [letter for letter in letters if letter in kept]
            results.append(np.transpose(reduced, [left.index(letter) for letter in kept]))
        return tuple(results)


def formula(text: str, join: str = "prod", **extents: int) -> Formula:
    """`formula("ij jk -> ik:sum", i=4, j=6, k=5)`."""
    terms, results = (side.split() for side in text.split("->"))
    pairs = tuple((result.split(":")[0], result.split(":")[1]) for result in results)
    return Formula(tuple(terms), pairs, tuple(extents.items()), join)


@dataclass(frozen=True)
class Window(Operator):
    """y[i] = x[i] - 3 * x[i + 1]: its input blocks overlap, and outputs need no aggregation."""

    extent: int
    family = "window"
    title = "window"
    aggregations = ("sum",)
    kernel = KernelCall("window")

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return (TensorDesc(("i",), (self.extent,), DType.I64),)

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return (TensorDesc(("i",), (self.extent - 1,), DType.I64),)

    @property
    def attributes(self) -> Attributes:
        return {}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return (ShardableIndex("i", self.extent - 1),)

    def build_spec(self, intervals: Intervals) -> JoinAggSpec:
        return JoinAggSpec(
            tuple(FunctionSpec((TensorType((lo,), (up + 1,)),), (TensorType((lo,), (up,)),)) for lo, up in intervals[0])
        )

    def flops(self, function: FunctionSpec) -> int:
        return 1

    def reference(self, *arrays: Any) -> tuple[Any, ...]:
        return (arrays[0][:-1] - 3 * arrays[0][1:],)


def computed(name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A computed tensor."""
    return Tensor(name, tuple(f"d{d}" for d in range(len(shape))), shape, dtype.value, "value")


def aggregates_alone(aggregation: AggregationName, rank: int) -> AggregationGroup:
    """The group of tensor 0."""
    return AggregationGroup.single(aggregation, 0, rank)


def inflow_of(residency: Residency, blocks: Sequence[tuple[TensorType, ...]]) -> Inflow:
    """The atoms of a tensor that aggregates alone, for function specifications that read these blocks of it."""
    (inflow,) = find_inflows({residency.number: blocks}, {residency.number: residency})[1]
    return inflow


def switch(sites: int, memory_bytes: int = 2**40) -> Machine:
    """A machine on which everybody can talk to everybody."""
    pairs = tuple((a, b) for a in range(sites) for b in range(sites) if a != b)
    resources = tuple(Resource(f"out {s}", 100.0, tuple(p for p in pairs if p[0] == s)) for s in range(sites))
    return Machine("switch", (Site(100.0, memory_bytes),) * sites, resources if sites > 1 else ())


def late_switch(sites: int) -> Machine:
    """A switch with such a latency that readers stay where the data are, even if these sites are busy."""
    return replace(switch(sites), transfer_latency_us=1e6)


def graph_of(
    nodes: Sequence[tuple[str, Operator, Sequence[str]]],
    outputs: Sequence[str],
    weights: Sequence[str] = (),
) -> Graph:
    """Nodes as (outputs separated by blanks, operator, inputs); inputs that nobody computes become graph inputs."""
    tensors: dict[str, GraphTensor] = {}
    result = []
    for names, operator, inputs in nodes:
        for name, desc in zip(inputs, operator.inputs, strict=True):
            kind = TensorKind.WEIGHT if name in weights else TensorKind.INPUT
            tensors.setdefault(name, GraphTensor(name, desc, kind))
        output_names = tuple(names.split())
        for name, desc in zip(output_names, operator.outputs, strict=True):
            tensors[name] = GraphTensor(name, desc, TensorKind.VALUE)
        result.append(Node(output_names[0], operator, tuple(inputs), output_names))
    return Graph("toy", tuple(tensors.values()), tuple(result), tuple(outputs))


def plan_of(graph: Graph, sites: int, counts: Mapping[str, Sequence[int]]) -> LogicalPlan:
    """The plan with these interval counts for every operator; costs are left at 0."""
    choices = []
    for node in graph.nodes:
        intervals = tuple(
            index.intervals(count) for index, count in zip(node.operator.indices, counts[node.name], strict=True)
        )
        spec = node.operator.build_spec(intervals)
        inputs = tuple(build_tiling(function.inputs[k] for function in spec.functions) for k in range(len(node.inputs)))
        outputs = tuple(
            build_tiling(function.outputs[j] for function in spec.functions) for j in range(len(node.outputs))
        )
        choices.append(Choice(node.name, Candidate(intervals, spec, 0, 0, inputs, outputs), 0))
    return LogicalPlan(graph, sites, "by hand", tuple(choices), False, 0)


LETTERS = {"a": 5, "A": 5, "b": 3, "B": 3, "c": 7, "d": 4}


def random_graph(rng: random.Random) -> Graph:
    """Two to six formulas over small odd extents, with shared tensors, squares, several outputs and scalars."""
    tensors = {"u": "ab", "v": "bc", "w": "dA"}
    nodes: list[tuple[str, Operator, Sequence[str]]] = []
    for n in range(rng.randint(2, 6)):
        names = [rng.choice(list(tensors)[-4:]) for _ in range(rng.choice((1, 2, 2)))]
        if rng.random() < 0.2:
            names = [names[0], names[0]]
        terms = tuple("".join(_relabelled(rng, tensors[name])) for name in names)
        letters = list(dict.fromkeys("".join(terms)))
        results = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            kept = [letter for letter in letters if rng.random() < 0.7]
            while prod(LETTERS[letter] for letter in kept) > 500:
                kept.pop()
            rng.shuffle(kept)
            results.append(("".join(kept), rng.choice(("sum", "sum", "max", "min", "prod"))))
        extents = tuple((letter, LETTERS[letter]) for letter in letters)
        operator = Formula(terms, tuple(results), extents, rng.choice(("prod", "sum", "max")))
        output_names = [f"t{n}" if j == 0 else f"t{n}_{j}" for j in range(len(results))]
        nodes.append((" ".join(output_names), operator, names))
        tensors.update(zip(output_names, (kept for kept, _ in results), strict=True))
    computed = [name for names, _, _ in nodes for name in names.split()]
    saved = sorted({computed[-1], *rng.sample(computed, min(2, len(computed)))})
    return graph_of(nodes, saved, weights=["v"])


def _relabelled(rng: random.Random, letters: str) -> Iterator[str]:
    """The same dimensions under letters of equal extents, no letter twice."""
    used: set[str] = set()
    for letter in letters:
        same = [
            candidate for candidate, extent in LETTERS.items()
            if extent == LETTERS[letter] and candidate not in used and (candidate == letter or candidate not in letters)
        ]  # fmt: skip
        chosen = rng.choice(same)
        used.add(chosen)
        yield chosen


def whole_arrays(graph: Graph, seed: int = 1) -> dict[str, Any]:
    """Random inputs, and every computed tensor by its operator's reference."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        tensor.name: rng.integers(-9, 10, tensor.desc.shape).astype(tensor.desc.dtype.numpy())
        for tensor in graph.tensors
        if tensor.kind is not TensorKind.VALUE
    }
    with np.errstate(over="ignore"):
        for node in graph.nodes:
            results = node.operator.reference(*(arrays[name] for name in node.inputs))
            arrays.update(zip(node.outputs, results, strict=True))
    return arrays


def wild_body(program: Program, rng: random.Random, sites: int) -> Program:
    """A valid body with relays, partial aggregates in random trees, redundant actions and waits."""
    actions: list[Action] = []
    members = {partition.name: partition.members or () for partition in program.partitions}
    held: dict[tuple[str, ...], list[int]] = {}
    for holding in program.holdings:
        held.setdefault(holding.aggregate, []).extend(holding.sites)

    def send(aggregate: tuple[str, ...], source: int, target: int) -> None:
        if source == target:
            return
        relay = rng.randrange(sites)
        if rng.random() < 0.4 and relay not in (source, target):
            actions.append(Action(aggregate, source, (relay,)))
            source = relay
        extra = {rng.randrange(sites)} if rng.random() < 0.2 else set()
        actions.append(Action(aggregate, source, tuple(sorted({target, *extra} - {source}))))

    for requirement in program.requirements:
        targets = [s for t in requirement.targets for s in (members[t] if isinstance(t, str) else (t,))]
        aggregate_wanted = requirement.aggregate
        if aggregate_wanted in held and rng.random() < 0.7:
            source = rng.choice(held[aggregate_wanted])
        else:
            parts = [((name,), rng.choice(held[(name,)])) for name in aggregate_wanted]
            while len(parts) > 1:
                rng.shuffle(parts)
                count = rng.randint(2, min(3, len(parts)))
                merged, parts = parts[:count], parts[count:]
                meeting = rng.choice([site for _, site in merged] + [rng.randrange(sites)])
                for part, site in merged:
                    send(part, site, meeting)
                total = tuple(sorted(name for part, _ in merged for name in part))
                actions.append(Action(total, meeting))
                parts.append((total, meeting))
            source = parts[0][1]
        for target in targets:
            if (target not in held.get(aggregate_wanted, ()) or rng.random() < 0.3) and target != source:
                send(aggregate_wanted, source, target)
                source = rng.choice((source, target))
    distinct = list(dict.fromkeys(actions))
    waiting: list[Action] = []
    for position, action in enumerate(distinct):  # data flows forward in this list, so that such waits make no cycle
        after = tuple(rng.sample(distinct[:position], min(position, rng.choice((0, 0, 0, 1, 2)))))
        waiting.append(Action(action.aggregate, action.source, action.destinations, after))
    rng.shuffle(waiting)
    return Program(program.gpus, program.partitions, program.holdings, program.requirements, tuple(waiting))


class Wild(NaiveScheduler):
    """Wild bodies over atoms cut at random, placed at random."""

    def __init__(self, rng: random.Random, machine: Machine, sites: int) -> None:
        super().__init__(machine, sites)
        self.rng, self.sites = rng, sites

    def schedule(
        self, node: str, inflows: Sequence[Inflow], functions: int, busy_ms: Sequence[float] | None = None
    ) -> ScheduledExchange:
        scheduled = super().schedule(node, inflows, functions, busy_ms)
        placement = tuple(self.rng.sample(range(self.sites), functions)) if inflows else scheduled.sites
        preamble = build_preamble(inflows, placement, self.sites)
        if preamble is None:
            return ScheduledExchange(placement)
        splits: dict[str, int] = {}
        for name, most in count_max_pieces(inflows, preamble).items():
            copies = preamble.atoms[name].copies
            splits[name] = splits.get(copies[0]) or self.rng.randint(1, min(most, self.rng.choice((1, 3, 9))))
        cut = split_atoms(inflows, preamble, {name: count for name, count in splits.items() if count > 1})
        program = wild_body(cut.program, self.rng, self.sites)
        verdict = check(program, self._machine)
        assert verdict.valid, verdict.faults
        return ScheduledExchange(placement, cut, Exchange(print_program(program), False), order_firings(program))
