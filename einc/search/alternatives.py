"""The other candidates of one operator of a finished plan, by what the time tables say of them.

All other operators keep their candidates, so that only tables around one operator are made. Overlap of exchanges and
kernels is not seen: a change that the tables like may make the whole plan slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc.core.intervals import Intervals
from einc.graph.graph import Graph, Node, TensorKind
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.plan import Candidate, LogicalPlan
from einc.machines.model import Machine
from einc.machines.site_counts import MAX_TIMED_SITES
from einc.ops.base import Operator
from einc.predict.ranges import find_difference_error
from einc.search.exchange_times import MISSING_MS
from einc.search.neighbours import list_changes
from einc.search.pruning import keep_fastest
from einc.search.tables import UNITS_PER_MS, KnownTimes, build_time_problems, find_slowest_kernel

MAX_RANKED = 6
"""Alternatives of one operator that are kept."""


@dataclass(frozen=True, slots=True)
class TimedAlternative:
    """A candidate in place of the chosen one, and about how much it adds to the plan's time (below 0: it saves).

    `error_ms` is within which time that is known (`predict.ranges`), None where nothing was fitted to the GPUs.
    """

    candidate: Candidate
    added_ms: float
    error_ms: float | None


class AlternativeTimer:
    """Finds the fastest alternatives in one plan. Operators that repeat with equal surroundings are timed once.

    `naive` says whether exchanges are timed as naive or as synthesized ones (`ExchangeEstimator`).
    """

    def __init__(self, plan: LogicalPlan, machine: Machine, *, naive: bool) -> None:
        self._plan = plan
        self._machine = machine
        self._naive = naive
        self._once = plan.input_placement == "once"
        self._positions = plan.graph.positions
        self._producers = plan.graph.producers()
        self._readers = plan.graph.consumers()
        self._tensors = plan.graph.tensor_table()
        self._saved = set(plan.graph.outputs)
        self._numbers: dict[Operator, int] = {}
        self._known: dict[object, tuple[TimedAlternative, ...]] = {}
        self._times = KnownTimes()
        self._alone: dict[tuple[Operator, Intervals, int], tuple[Candidate, ...]] = {}

    def find(self, name: str) -> TimedAlternative | None:
        """The fastest alternative for the node of that name; None if there is none, or above MAX_TIMED_SITES sites.

        Raises KeyError if there is no such node.
        """
        return next(iter(self.rank(name)), None)

    def rank(self, name: str) -> tuple[TimedAlternative, ...]:
        """The alternatives for the node, the fastest first, at most MAX_RANKED; none above MAX_TIMED_SITES sites."""
        if self._plan.sites > MAX_TIMED_SITES:
            return ()
        key = self.describe(name)
        if key not in self._known:
            n = self._positions[name]
            self._known[key] = self._find(n, self._list_around(n))
        return self._known[key]

    def describe(self, name: str) -> object:
        """A key that two nodes have in common only if all that is around them is equal."""
        n = self._positions[name]
        return self._describe(n, self._list_around(n))

    def _find(self, n: int, around: list[int]) -> tuple[TimedAlternative, ...]:
        plan = self._plan
        chosen_candidate = plan.choices[n].candidate
        operator = plan.graph.nodes[n].operator
        offer = enumerate_flexible_candidates(operator, plan.sites)
        offer = keep_fastest(operator, offer, self._machine, plan.sites, self._times)
        offer = offer if chosen_candidate in offer else (*offer, chosen_candidate)
        options = [offer if m == n else self._keep_alone(m) for m in around]
        graph = self._select([plan.graph.nodes[m] for m in around])
        naive, synthesized = build_time_problems(
            graph, options, self._machine, plan.sites, once=self._once, known=self._times
        )
        problem = naive if self._naive else synthesized
        assignment = [offer.index(chosen_candidate) if m == n else 0 for m in around]
        return tuple(
            self._describe_change(n, offer[change.candidates[0]], change.added / UNITS_PER_MS)
            for change in list_changes(problem, assignment)[:MAX_RANKED]
            if change.added < MISSING_MS * UNITS_PER_MS / 2
        )

    def _keep_alone(self, n: int) -> tuple[Candidate, ...]:
        """The chosen candidate of a node. Equal operators that are cut alike have the same tuple, and share times."""
        chosen = self._plan.choices[n].candidate
        key = self._plan.graph.nodes[n].operator, chosen.intervals, chosen.replicas
        return self._alone.setdefault(key, (chosen,))

    def _describe_change(self, n: int, candidate: Candidate, added_ms: float) -> TimedAlternative:
        operator = self._plan.graph.nodes[n].operator
        before, before_ms = find_slowest_kernel(operator, self._plan.choices[n].candidate, self._machine)
        after, after_ms = find_slowest_kernel(operator, candidate, self._machine)
        error_ms = find_difference_error((before, after), (before_ms, after_ms), added_ms, self._machine)
        return TimedAlternative(candidate, added_ms, error_ms)

    def _list_around(self, n: int) -> list[int]:
        """The node, the producers of what it reads, those that read it right before and after, and all its readers."""
        node = self._plan.graph.nodes[n]
        nearby = {n}
        for tensor in node.inputs:
            if tensor in self._producers:
                nearby.add(self._positions[self._producers[tensor][0].name])
            elif not self._once:
                continue
            places = list(dict.fromkeys(self._positions[reader.name] for reader, _ in self._readers[tensor]))
            rank = places.index(n)
            nearby.update(places[max(0, rank - 1) : rank + 2])
        for tensor in node.outputs:
            nearby.update(self._positions[reader.name] for reader, _ in self._readers[tensor])
        return sorted(nearby)

    def _select(self, nodes: list[Node]) -> Graph:
        """The part of the graph with these nodes."""
        used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
        produced = {name for node in nodes for name in node.outputs}
        tensors = tuple(tensor for name, tensor in self._tensors.items() if name in used)
        outputs = tuple(name for name in self._plan.graph.outputs if name in produced)
        return Graph(self._plan.graph.name, tensors, tuple(nodes), outputs)

    def _describe(self, n: int, around: list[int]) -> object:
        """The key of a node and those around it."""
        places: dict[str, int] = {}

        def refer(names: tuple[str, ...]) -> tuple[tuple[int, bool, bool], ...]:
            return tuple(
                (places.setdefault(x, len(places)), x in self._saved, self._tensors[x].kind is TensorKind.VALUE)
                for x in names
            )

        rows = []
        for m in around:
            node, candidate = self._plan.graph.nodes[m], self._plan.choices[m].candidate
            kind = self._numbers.setdefault(node.operator, len(self._numbers))
            rows.append(
                (m == n, kind, candidate.intervals, candidate.replicas, refer(node.inputs), refer(node.outputs))
            )
        return tuple(rows)
