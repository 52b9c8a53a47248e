"""The time objective of a graph: what every candidate takes, and what every pair of neighbouring candidates takes.

The time of a candidate is that of its slowest function specification (`predict.costs`), and of combining the partial
copies of what is saved. The time between two candidates is that of the exchange between their blocks
(`exchange_times`). A tensor that several operators read is brought once where they read equal blocks at equal sites:
a later reader pays only where its blocks differ from those of the reader before it, so that its table has three
variables. Overlap of exchanges and kernels is not seen here; whole plans show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorType
from einc.graph.graph import Graph, TensorKind
from einc.logical.minsum import CostTable
from einc.logical.plan import Candidate
from einc.logical.problem import Problem
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.physical.homes import cut_home
from einc.predict.costs import TaskCost, TaskKind, compute_occupied_ms
from einc.search.exchange_times import ExchangeEstimator, Family

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

UNITS_PER_MS = 10**9
"""Tables hold whole picoseconds, so that sums are exact and ties are ties."""

Side = Literal["inputs", "outputs"]


@dataclass(frozen=True, slots=True, eq=False)
class TimeProblem:
    """Per node the times of its candidates, and the tables between nodes, in picoseconds."""

    own: tuple[Array, ...]
    tables: tuple[CostTable, ...]


def build_time_problem(
    graph: Graph, problem: Problem, machine: Machine, sites: int, *, naive: bool, once: bool = False
) -> TimeProblem:
    """The time objective for the candidates of a problem; equal layers share their tables.

    `naive` says how exchanges are timed (see `ExchangeEstimator`). With `once`, inputs and weights are brought from
    homes near their first readers (`einc.physical.homes`).
    """
    maker = _TableMaker(graph, problem, machine, sites, naive)
    position = {node.name: n for n, node in enumerate(graph.nodes)}
    readers = graph.consumers()
    saved = set(graph.outputs)
    own = []
    tables = []
    for n, node in enumerate(graph.nodes):
        times = maker.time_candidates(n)
        for j, name in enumerate(node.outputs):
            if name in saved:
                times = times + maker.time_gathering(n, j)
            before: tuple[int, int] | None = None
            for reader, k in readers[name]:
                here = position[reader.name], k
                if before is None or before[0] == here[0]:
                    tables.append(maker.relate((n, j), here))
                else:
                    tables.append(maker.relate_second((n, j), before, here))
                before = here
        own.append(times)
    if once:
        for tensor in graph.tensors:
            if tensor.kind is not TensorKind.VALUE:
                before = None
                for reader, k in readers[tensor.name]:
                    here = position[reader.name], k
                    if before is None:
                        own[here[0]] = own[here[0]] + maker.time_bringing(here)
                    elif before[0] != here[0]:
                        tables.append(maker.relate_readers(before, here))
                    before = here
    return TimeProblem(tuple(own), tuple(tables))


class _TableMaker:
    """Makes tables. Those of equal operators with the same candidates are made once.

    Ports are pairs of a node and a position among its inputs or outputs. What is remembered is keyed by the identity of
    the candidates, which the problem keeps alive: hashing them would visit every block.
    """

    def __init__(self, graph: Graph, problem: Problem, machine: Machine, sites: int, naive: bool) -> None:
        self._graph = graph
        self._options = problem.candidates
        self._machine = machine
        self._estimator = ExchangeEstimator(machine, sites, naive=naive)
        self._families: dict[tuple[int, Side, int], tuple[tuple[Family, ...], Array]] = {}
        self._times: dict[int, Array] = {}
        self._gathering: dict[tuple[int, int], Array] = {}
        self._exchanges: dict[tuple[int, ...], Array] = {}
        self._second: dict[tuple[int, ...], Array] = {}
        self._brought: dict[tuple[int, ...], Array] = {}

    def time_candidates(self, n: int) -> Array:
        """Per candidate of node n, the time of its slowest function specification.

        Where sites share cores, it is no less than the work of all of them divided by the cores.
        """
        key = id(self._options[n])
        if key not in self._times:
            self._times[key] = _round([self._time(self._graph.nodes[n].operator, one) for one in self._options[n]])
        return self._times[key]

    def _time(self, operator: Operator, candidate: Candidate) -> float:
        sites, latency, precision = self._machine.sites, self._machine.kernel_latency_us, operator.precision
        known: dict[FunctionSpec, tuple[int, int]] = {}
        worst = total = 0.0
        for site, function in enumerate(candidate.functions):
            if function not in known:
                known[function] = operator.traffic(function), operator.flops(function)
            cost = TaskCost(TaskKind.KERNEL, site, (), *known[function], precision, task=operator.kernel.name)
            took = compute_occupied_ms(cost, sites[site], latency)
            worst, total = max(worst, took), total + took
        return worst if self._machine.cores is None else max(worst, total / self._machine.cores)

    def time_gathering(self, n: int, j: int) -> Array:
        """Per candidate of node n, the time to combine the copies of every block of a saved output."""
        key = id(self._options[n]), j
        if key not in self._gathering:
            families, classes = self._list_families(n, "outputs", j)
            homes = [Family(tuple(dict.fromkeys(family.blocks))) for family in families]
            itemsize = self._graph.nodes[n].operator.outputs[j].dtype.itemsize
            times = [
                self._estimator.estimate([family], [home], itemsize)[0, 0]
                if len(home.blocks) < len(family.blocks)
                else 0
                for family, home in zip(families, homes, strict=True)
            ]
            self._gathering[key] = _round(times)[classes]
        return self._gathering[key]

    def relate(self, source: tuple[int, int], reader: tuple[int, int]) -> CostTable:
        """The exchange from an output to its first reader."""
        classes = (self._list_families(source[0], "outputs", source[1])[1], self._list_families(*_input(reader))[1])
        return _order_variables((source[0], reader[0]), classes, self._exchange(source, reader))

    def relate_second(self, source: tuple[int, int], before: tuple[int, int], reader: tuple[int, int]) -> CostTable:
        """The exchange from an output to a later reader, which is free where the reader before it has the blocks."""
        import numpy as np

        key = self._key(source, before, reader)
        there, classes_before = self._list_families(*_input(before))
        wanted, classes = self._list_families(*_input(reader))
        if key not in self._second:
            covered = np.array([[_covers(one, other) for other in wanted] for one in there])
            self._second[key] = np.where(covered[None], 0, self._exchange(source, reader)[:, None, :])
        classes_made = self._list_families(source[0], "outputs", source[1])[1]
        variables = (source[0], before[0], reader[0])
        return _order_variables(variables, (classes_made, classes_before, classes), self._second[key])

    def time_bringing(self, reader: tuple[int, int]) -> Array:
        """Per candidate of the first reader of an input, the time to bring its blocks from their homes."""
        import numpy as np

        classes = self._list_families(*_input(reader))[1]
        times: Array = np.diagonal(self._bring(reader, reader))[classes]
        return times

    def relate_readers(self, before: tuple[int, int], reader: tuple[int, int]) -> CostTable:
        """The exchange of an input to a later reader, as if the reader before it were the first."""
        import numpy as np

        there, classes_before = self._list_families(*_input(before))
        wanted, classes = self._list_families(*_input(reader))
        covered = np.array([[_covers(one, other) for other in wanted] for one in there])
        costs = np.where(covered, 0, self._bring(before, reader))
        return _order_variables((before[0], reader[0]), (classes_before, classes), costs)

    def _bring(self, first: tuple[int, int], reader: tuple[int, int]) -> Array:
        """The exchange of an input from homes near its first reader."""
        key = self._key(first, reader)
        if key not in self._brought:
            itemsize = self._graph.nodes[reader[0]].operator.inputs[reader[1]].dtype.itemsize
            homes = [_find_homes(family, itemsize) for family in self._list_families(*_input(first))[0]]
            asked = self._list_families(*_input(reader))[0]
            self._brought[key] = _round(self._estimator.estimate(homes, asked, itemsize))
        return self._brought[key]

    def _exchange(self, source: tuple[int, int], reader: tuple[int, int]) -> Array:
        key = self._key(source, reader)
        if key not in self._exchanges:
            made, asked = (
                self._list_families(source[0], "outputs", source[1])[0],
                self._list_families(*_input(reader))[0],
            )
            itemsize = self._graph.nodes[source[0]].operator.outputs[source[1]].dtype.itemsize
            self._exchanges[key] = _round(self._estimator.estimate(made, asked, itemsize))
        return self._exchanges[key]

    def _list_families(self, n: int, side: Side, position: int) -> tuple[tuple[Family, ...], Array]:
        """The distinct families of a port, and for every candidate of its node the number of its family."""
        import numpy as np

        key = id(self._options[n]), side, position
        if key not in self._families:
            numbers: dict[Family, int] = {}
            classes = []
            for candidate in self._options[n]:
                blocks = tuple([getattr(one, side)[position] for one in candidate.functions])
                family = Family(blocks, candidate.replicas if side == "outputs" else 1)
                classes.append(numbers.setdefault(family, len(numbers)))
            self._families[key] = tuple(numbers), np.array(classes)
        return self._families[key]

    def _key(self, *ports: tuple[int, int]) -> tuple[int, ...]:
        return tuple(part for n, position in ports for part in (id(self._options[n]), position))


def _input(port: tuple[int, int]) -> tuple[int, Side, int]:
    return port[0], "inputs", port[1]


def _round(times: Any) -> Array:
    """Milliseconds as whole picoseconds."""
    import numpy as np

    rounded: Array = np.rint(np.asarray(times) * UNITS_PER_MS).astype(np.int64)
    return rounded


def _order_variables(variables: Sequence[int], classes: Sequence[Array], costs: Array) -> CostTable:
    """The table with its variables in ascending order."""
    order = sorted(range(len(variables)), key=lambda axis: variables[axis])
    ordered = tuple(variables[axis] for axis in order)
    return CostTable(ordered, tuple(classes[axis] for axis in order), costs.transpose(order))


def _find_homes(asked: Family, itemsize: int) -> Family:
    """The blocks of an input at their homes near its first reader: for every site a piece of what it reads."""
    alike: dict[TensorType, list[int]] = {}
    for site, block in enumerate(asked.blocks):
        alike.setdefault(block, []).append(site)
    at = list(asked.blocks)
    for block, sites in alike.items():
        pieces = cut_home(block, len(sites), itemsize)
        nothing = TensorType(block.lower, block.lower)
        for position, site in enumerate(sites):
            at[site] = pieces[position] if position < len(pieces) else nothing
    return Family(tuple(at))


def _covers(there: Family, wanted: Family) -> bool:
    """Whether every site has its block of `wanted` if it has that of `there`."""
    enough = len(wanted.blocks) <= len(there.blocks)
    return enough and all(a.contains(b) for a, b in zip(there.blocks, wanted.blocks, strict=False))
