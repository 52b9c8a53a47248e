"""The time objective of a graph: what every candidate takes, and what every pair of neighbouring candidates takes.

The time of a candidate is that of its slowest function specification (`predict.costs`), and of combining the partial
copies of what is saved. The time between two candidates is that of the exchange between their blocks
(`exchange_times`). A tensor that several operators read is brought once where they read equal blocks at equal sites:
a later reader pays only where its blocks differ from those of the reader before it, so that its table has three
variables. Overlap of exchanges and kernels is not seen here; whole plans show that.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from einc.core.tensor import Array, TensorType
from einc.graph.graph import Graph, TensorKind, find_updaters
from einc.logical.minsum import CostTable
from einc.logical.plan import Candidate
from einc.machines.model import Machine, Site
from einc.ops.base import Operator
from einc.physical.homes import cut_home
from einc.predict.costs import TaskCost, compute_occupied_ms
from einc.search.exchange_times import NAIVE, SYNTHESIZED, Family, find_covered, make_estimator
from einc.search.kernel_costs import describe_known, list_cost_keys

UNITS_PER_MS = 10**9
"""Tables hold whole picoseconds, so that sums are exact and ties are ties."""

Side = Literal["inputs", "outputs"]

Port = tuple[int, int]
"""A node, and a position among its inputs or outputs."""


@dataclass(frozen=True, slots=True, eq=False)
class TimeProblem:
    """Per node the times of its candidates, and the tables between nodes, in picoseconds."""

    node_times: tuple[Array, ...]
    tables: tuple[CostTable, ...]


def build_time_problems(
    graph: Graph,
    options: Sequence[tuple[Candidate, ...]],
    machine: Machine,
    sites: int,
    *,
    once: bool = False,
    variables: Sequence[int] | None = None,
    known: KnownTimes | None = None,
) -> tuple[TimeProblem, TimeProblem]:
    """The time objective with naive and with synthesized exchanges, where node n has the candidates `options[n]`.

    With `once`, inputs and weights are brought from homes near their first readers (`einc.physical.homes`). Nodes with
    the same number in `variables` (0, 1, ...; each node's own by default) are cut alike: they are one variable, and
    what each of them takes is added up. Equal layers share their tables. `known` has what was computed for other graphs
    with these candidates on this machine, and keeps what is computed.
    """
    numbers = range(len(graph.nodes)) if variables is None else variables
    maker = _TableMaker(graph, options, machine, sites, known or KnownTimes())
    relations = _list_relations(graph, options)
    brought = _list_input_relations(graph) if once else []
    return (
        _build_time_problem(graph, maker, numbers, relations, brought, NAIVE),
        _build_time_problem(graph, maker, numbers, relations, brought, SYNTHESIZED),
    )


def _build_time_problem(
    graph: Graph,
    maker: _TableMaker,
    numbers: Sequence[int],
    relations: Sequence[tuple[Port, ...]],
    brought: Sequence[tuple[Port, ...]],
    way: int,
) -> TimeProblem:
    node_times: dict[int, Array] = {}
    saved = set(graph.outputs)
    for n, node in enumerate(graph.nodes):
        times = maker.time_candidates(n)
        for j, name in enumerate(node.outputs):
            if name in saved:
                times = times + maker.time_gathering(n, j, way)
        node_times[numbers[n]] = node_times[numbers[n]] + times if numbers[n] in node_times else times
    tables: list[CostTable] = []
    for inputs in (True, False):
        counts: Counter[tuple[Port, ...]] = Counter()
        example: dict[tuple[Port, ...], tuple[Port, ...]] = {}
        for ports in brought if inputs else relations:
            key = tuple((numbers[m], port_number) for m, port_number in ports)
            counts[key] += 1
            example.setdefault(key, ports)
        for key, count in counts.items():
            relate = maker.relate_readers if inputs else maker.relate
            _add(node_times, tables, relate(example[key], tuple(variable for variable, _ in key), way), count)
    return TimeProblem(tuple(node_times[v] for v in range(len(node_times))), tuple(tables))


def time_candidates(
    operator: Operator, options: Sequence[Candidate], machine: Machine, known: KnownTimes | None = None
) -> Array:
    """Per candidate the time of its slowest function specification, in picoseconds.

    Where sites share cores, it is no less than the work of all of them divided by the cores.
    """
    kinds = _number_kinds(machine)
    kernels = {} if known is None else known.kernels
    timed: dict[object, tuple[TaskCost, float]] = {}
    times = []
    for candidate in options:
        if id(candidate) not in kernels:
            kernels[id(candidate)] = candidate, _time_candidate(operator, candidate, machine, kinds, timed)
        times.append(kernels[id(candidate)][1])
    return _round(times)


def _time_candidate(
    operator: Operator,
    candidate: Candidate,
    machine: Machine,
    kinds: Sequence[int],
    timed: dict[object, tuple[TaskCost, float]],
) -> float:
    worst = total = 0.0
    for _, took in _time_functions(operator, candidate, machine, kinds, timed):
        worst, total = max(worst, took), total + took
    return worst if machine.cores is None else max(worst, total / machine.cores)


def find_slowest_kernel(operator: Operator, candidate: Candidate, machine: Machine) -> tuple[TaskCost, float]:
    """Of the function specifications of a candidate, the slowest one's cost and time in ms."""
    return max(_time_functions(operator, candidate, machine, _number_kinds(machine), {}), key=lambda timed: timed[1])


def _number_kinds(machine: Machine) -> list[int]:
    """For every site a number that equal sites share."""
    numbers: dict[Site, int] = {}
    return [numbers.setdefault(site, len(numbers)) for site in machine.sites]


def _time_functions(
    operator: Operator,
    candidate: Candidate,
    machine: Machine,
    kinds: Sequence[int],
    timed: dict[object, tuple[TaskCost, float]],
) -> Iterator[tuple[TaskCost, float]]:
    """The cost and the time in ms of every function specification of a candidate, at its site; `timed` keeps those of
    the operator, which other candidates may have, too."""
    keys = list_cost_keys(operator, candidate) * candidate.replicas
    for site, kind, key, function in zip(machine.sites, kinds, keys, candidate.functions, strict=False):
        took = timed.get((key, kind))
        if took is None:
            cost = describe_known(operator, function, key)
            took = timed[key, kind] = cost, compute_occupied_ms(cost, site, machine.kernel_latency_us)
        yield took


def _list_relations(graph: Graph, options: Sequence[tuple[Candidate, ...]]) -> list[tuple[Port, ...]]:
    """For every reader of a computed tensor: the output, the reader before it (if that is another node), the reader.

    A node that reads the same blocks twice counts once. A state lies as what writes over it left it in the run before.
    """
    readers = graph.consumers()
    relations: list[tuple[Port, ...]] = []
    outputs = [(n, j, name) for n, node in enumerate(graph.nodes) for j, name in enumerate(node.outputs)]
    for n, j, name in (*outputs, *((n, 0, state) for state, n in find_updaters(graph).items())):
        before: Port | None = None
        for reader, k in readers[name]:
            port = graph.positions[reader.name], k
            if before is not None and before[0] == port[0] and _reads_alike(options[port[0]], before[1], k):
                continue
            if port[0] == n:  # it writes over this state, where it lies
                continue
            first = before is None or before[0] == port[0]
            relations.append(((n, j), port) if first or before is None else ((n, j), before, port))
            before = port
    return relations


def _reads_alike(options: Sequence[Candidate], k: int, other_input: int) -> bool:
    """Whether two inputs of a node have the same blocks, however it is cut."""
    return all(
        function.inputs[k] == function.inputs[other_input] for candidate in options for function in candidate.functions
    )


def _list_input_relations(graph: Graph) -> list[tuple[Port, ...]]:
    """For every reader of an input or a weight: the reader before it, and the reader; the first one stands alone."""
    readers = graph.consumers()
    relations: list[tuple[Port, ...]] = []
    for tensor in graph.tensors:
        if tensor.kind in (TensorKind.INPUT, TensorKind.WEIGHT):
            ports = [(graph.positions[reader.name], k) for reader, k in readers[tensor.name]]
            relations += [(port,) for port in ports[:1]]
            relations += [pair for pair in itertools.pairwise(ports) if pair[0][0] != pair[1][0]]
    return relations


def _add(node_times: dict[int, Array], tables: list[CostTable], table: CostTable, count: int) -> None:
    """Adds `count` times a table, which may be one of a single variable."""
    if len(table.variables) == 1:
        node_times[table.variables[0]] = node_times[table.variables[0]] + table.costs[table.classes[0]] * count
    else:
        tables.append(CostTable(table.variables, table.classes, table.costs * count))


@dataclass(slots=True)
class KnownTimes:
    """What tables consist of, for graphs whose operators share candidates, on the same sites of a machine.

    It is keyed by the identity of candidates, as hashing them would visit every block; `kept` and `kernels` hold them,
    so that they live as long as this. An operator's candidates are made for it and for those that equal it. Where only
    `naive` exchanges are asked for, both tables have these. Messages add `message_ms` each (`ExchangeEstimator`).
    """

    naive: bool = False
    message_ms: float = 0.0
    kernels: dict[int, tuple[Candidate, float]] = field(default_factory=dict)
    kept: dict[int, tuple[Candidate, ...]] = field(default_factory=dict)
    families: dict[tuple[int, Side, int], tuple[tuple[Family, ...], Array]] = field(default_factory=dict)
    times: dict[int, Array] = field(default_factory=dict)
    gathering: dict[tuple[int, int], Array] = field(default_factory=dict)
    exchanges: dict[tuple[int, ...], Array] = field(default_factory=dict)
    second: dict[tuple[int, ...], Array] = field(default_factory=dict)
    brought: dict[tuple[int, ...], Array] = field(default_factory=dict)


class _TableMaker:
    """Makes tables. Those of equal operators with the same candidates are made once."""

    def __init__(
        self,
        graph: Graph,
        options: Sequence[tuple[Candidate, ...]],
        machine: Machine,
        sites: int,
        known: KnownTimes,
    ) -> None:
        self._graph = graph
        self._options = options
        self._machine = machine
        self._estimator = make_estimator(machine, sites)
        self._known = known
        known.kept.update((id(node_options), node_options) for node_options in options)

    def time_candidates(self, n: int) -> Array:
        """Per candidate of node n, its time."""
        key = id(self._options[n])
        if key not in self._known.times:
            self._known.times[key] = time_candidates(
                self._graph.nodes[n].operator, self._options[n], self._machine, self._known
            )
        return self._known.times[key]

    def time_gathering(self, n: int, j: int, way: int) -> Array:
        """Per candidate of node n, the time to combine the copies of every block of a saved output."""
        key = id(self._options[n]), j
        if key not in self._known.gathering:
            families, classes = self._list_families(n, "outputs", j)
            homes = [Family(tuple(dict.fromkeys(family.blocks))) for family in families]
            itemsize = self._graph.nodes[n].operator.outputs[j].dtype.itemsize
            times = np.zeros((2, len(families)))
            for number, (family, home) in enumerate(zip(families, homes, strict=True)):
                if len(home.blocks) < len(family.blocks):
                    times[:, number] = self._estimator.estimate([family], [home], itemsize)[:, 0, 0]
            self._known.gathering[key] = _round(times)[:, classes]
        gathering: Array = self._known.gathering[key][way]
        return gathering

    def relate(self, ports: tuple[Port, ...], variables: tuple[int, ...], way: int) -> CostTable:
        """The exchange from an output (the first port) to a reader (the last one).

        With three ports it is free where the reader in between has the blocks.
        """
        source, reader = ports[0], ports[-1]
        families = [self._list_families(source[0], "outputs", source[1])]
        families += [self._list_families(n, "inputs", k) for n, k in ports[1:]]
        classes = [classes for _, classes in families]
        costs = self._exchange(source, reader)[way]
        if len(ports) == 3:
            key = (*self._key(*ports), way)
            if key not in self._known.second:
                covered = find_covered(families[1][0], families[2][0])
                self._known.second[key] = np.where(covered[None], 0, costs[:, None, :])
            costs = self._known.second[key]
        return _arrange(variables, classes, costs)

    def relate_readers(self, ports: tuple[Port, ...], variables: tuple[int, ...], way: int) -> CostTable:
        """The exchange of an input to a reader (the last port), as if the reader before it were the first."""
        before, reader = ports[0], ports[-1]
        held, classes_before = self._list_families(before[0], "inputs", before[1])
        needed, classes = self._list_families(reader[0], "inputs", reader[1])
        brought = self._bring(before, reader)[way]
        if before == reader:
            return CostTable(variables, (classes,), np.diagonal(brought))
        covered = find_covered(held, needed)
        return _arrange(variables, (classes_before, classes), np.where(covered, 0, brought))

    def _bring(self, first: Port, reader: Port) -> Array:
        """The exchange of an input from homes near its first reader."""
        key = self._key(first, reader)
        if key not in self._known.brought:
            itemsize = self._graph.nodes[reader[0]].operator.inputs[reader[1]].dtype.itemsize
            homes = [_find_homes(family, itemsize) for family in self._list_families(first[0], "inputs", first[1])[0]]
            required = self._list_families(reader[0], "inputs", reader[1])[0]
            self._known.brought[key] = _round(self._estimator.estimate(homes, required, itemsize))
        return self._known.brought[key]

    def _exchange(self, source: Port, reader: Port) -> Array:
        key = self._key(source, reader)
        if key not in self._known.exchanges:
            produced = self._list_families(source[0], "outputs", source[1])[0]
            required = self._list_families(reader[0], "inputs", reader[1])[0]
            itemsize = self._graph.nodes[source[0]].operator.outputs[source[1]].dtype.itemsize
            estimates = self._estimator.estimate(
                produced, required, itemsize, self._known.naive, self._known.message_ms
            )
            self._known.exchanges[key] = _round(estimates)
        return self._known.exchanges[key]

    def _list_families(self, n: int, side: Side, position: int) -> tuple[tuple[Family, ...], Array]:
        """The distinct families of a port, and for every candidate of its node the number of its family."""
        key = id(self._options[n]), side, position
        if key not in self._known.families:
            numbers: dict[Family, int] = {}
            classes = []
            for candidate in self._options[n]:
                blocks = tuple([getattr(function, side)[position] for function in candidate.functions])
                family = Family(blocks, candidate.replicas if side == "outputs" else 1)
                classes.append(numbers.setdefault(family, len(numbers)))
            self._known.families[key] = tuple(numbers), np.array(classes)
        return self._known.families[key]

    def _key(self, *ports: Port) -> tuple[int, ...]:
        return tuple(part for n, position in ports for part in (id(self._options[n]), position))


def _round(times: Any) -> Array:
    """Milliseconds as whole picoseconds."""
    rounded: Array = np.rint(np.asarray(times) * UNITS_PER_MS).astype(np.int64)
    return rounded


def _arrange(variables: Sequence[int], classes: Sequence[Array], costs: Array) -> CostTable:
    """The table with its variables in ascending order, each of them once."""
    order = sorted(range(len(variables)), key=lambda axis: variables[axis])
    costs = costs.transpose(order)
    names: list[int] = []
    kept: list[Array] = []
    for axis in order:
        if names and names[-1] == variables[axis]:  # one variable twice: its values choose both classes
            at = len(names) - 1
            costs = np.moveaxis(costs, (at, at + 1), (0, 1))[kept[-1], classes[axis]]
            costs = np.moveaxis(costs, 0, at)
            kept[-1] = np.arange(len(classes[axis]))
        else:
            names.append(variables[axis])
            kept.append(classes[axis])
    return CostTable(tuple(names), tuple(kept), costs)


def _find_homes(required: Family, itemsize: int) -> Family:
    """The blocks of an input at their homes near its first reader: for every site a piece of what it reads."""
    sites_of_block: dict[TensorType, list[int]] = {}
    for site, block in enumerate(required.blocks):
        sites_of_block.setdefault(block, []).append(site)
    at = list(required.blocks)
    for block, sites in sites_of_block.items():
        pieces = cut_home(block, len(sites), itemsize)
        nothing = TensorType(block.lower, block.lower)
        for position, site in enumerate(sites):
            at[site] = pieces[position] if position < len(pieces) else nothing
    return Family(tuple(at))
