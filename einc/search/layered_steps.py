"""Training steps of many layers: cuts are chosen for a step of a few layers, and used for all of them.

The step of a few layers is derived from the model with most of its layers left out (`folding`), as that of all of them
is. An operator of the whole step is cut as one of the small step that is equal, and whose name and inputs differ in
numbers alone. Any cuts make a plan that computes the step: what is matched decides how fast it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from einc.errors import CapacityError
from einc.graph.graph import Graph, Node, count_resident_bytes, updates_state
from einc.logical.candidates import enumerate_flexible_candidates
from einc.logical.optimize import build_choices
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import connect
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.physical.program import DeviceProgram
from einc.plan_report import Contender
from einc.search.initial_plans import KNOWN
from einc.search.result import SelectedPlan
from einc.training.recomputation import AGAIN

MIN_LAYERED = 1_000
"""Operators of a step from which on it is planned so: a search over as many takes minutes."""

LAYERED = "few layers"
"""The name of the contender whose cuts are those of a step of a few layers."""

Build = Callable[[LogicalPlan], DeviceProgram]
"""Makes the program of a plan. Raises CapacityError."""

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class LayeredStep:
    """The fused graph of a whole training step, and that of a step of a few of its layers."""

    full_graph: Graph
    small_graph: Graph

    def limit_memory(self, machine: Machine, sites: int) -> Machine | None:
        """The machine without the memory that the other layers take, evenly over its sites. None where nothing is
        left."""
        left = min(site.memory_bytes for site in machine.sites) - self.measure_omitted(sites)
        return machine.limit_memory(left) if left > 0 else None

    def measure_omitted(self, sites: int) -> int:
        """The bytes of a site that the other layers take if nothing of theirs is on two sites."""
        return (measure_peak_bytes(self.full_graph) - measure_peak_bytes(self.small_graph)) // sites

    def expand(self, plan: LogicalPlan) -> LogicalPlan:
        """The plan of the whole step with the cuts of one of the small step."""
        matched = self._match(plan)
        options = [(find_uncut(node.operator, plan.sites),) if candidate is None else (candidate,)
                   for node, candidate in zip(self.full_graph.nodes, matched, strict=True)]  # fmt: skip
        problem = connect(self.full_graph, tuple(options))
        choices = build_choices(self.full_graph, problem, (0,) * len(options))
        return replace(plan, graph=self.full_graph, choices=choices, exact=False, contenders=(), memory_points=())

    def select(self, plans: Mapping[str, LogicalPlan], build: Build) -> SelectedPlan:
        """The fastest that fits of plans of the small step, each built for the whole one, or the first one without a
        program if none does. Of well-known plans, those behind the first that fits are not built."""
        contenders: list[Contender] = []
        fitting: dict[str, DeviceProgram] = {}
        for name, plan in plans.items():
            if name in KNOWN and not KNOWN.isdisjoint(fitting):
                contenders.append(Contender(name, reason="the time tables promise more of another well-known plan"))
                continue
            try:
                program = build(self.expand(plan))
            except CapacityError:
                contenders.append(Contender(name, reason="it does not fit into memory"))
                continue
            fitting[name], cost = program, program.plan.total_cost
            contenders.append(Contender(name, False, program.predicted_ms, max(program.memory), cost))
        if not fitting:
            return SelectedPlan(self.expand(next(iter(plans.values()))), None)
        chosen = min(fitting, key=lambda name: fitting[name].predicted_ms)
        told = tuple(msgspec.structs.replace(each, chosen=each.name == chosen) for each in contenders)
        full_plan = replace(fitting[chosen].plan, contenders=told)
        return SelectedPlan(full_plan, replace(fitting[chosen], plan=full_plan))

    def _match(self, plan: LogicalPlan) -> list[Candidate | None]:
        """The cut of every node of the whole step; None for one that no operator of the small step is equal to."""
        cuts_by_key: dict[object, list[Candidate]] = {}
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
            for key in _list_keys(node):
                cuts_by_key.setdefault(key, []).append(choice.candidate)
        matched: list[Candidate | None] = []
        for node in self.full_graph.nodes:
            options = next((cuts_by_key[key] for key in _list_keys(node) if key in cuts_by_key), None)
            matched.append(None if options is None else options[len(options) // 2])
        return matched


def measure_peak_bytes(graph: Graph) -> int:
    """The most bytes that all sites of a step keep together if nothing is on two of them: states, and the values that
    are in use at once, in the order of the graph."""
    table = graph.tensor_table()
    last = {name: n for n, node in enumerate(graph.nodes) for name in node.inputs}
    ending: dict[int, int] = {}
    most = live = 0
    for n, node in enumerate(graph.nodes):
        for name in () if updates_state(node.operator) else node.outputs:
            size = table[name].desc.type.size * table[name].desc.dtype.itemsize
            live += size
            ending[last.get(name, n)] = ending.get(last.get(name, n), 0) + size
        most = max(most, live)
        live -= ending.pop(n, 0)
    return count_resident_bytes(graph) + most


def _list_keys(node: Node) -> list[object]:
    """What tells an operator from others, the most exact first."""
    name, *inputs = (_NUMBERS.sub("", text.replace(AGAIN, "")) for text in (node.name, *node.inputs))
    return [(node.operator, name, tuple(inputs)), (node.operator, name), node.operator]


@lru_cache(maxsize=64)
def find_uncut(operator: Operator, sites: int) -> Candidate:
    """The cut of an operator that none of a small step is equal to: the least, on most sites; on one if it makes fewer
    values than there are sites, as to bring what it reads to all takes longer than to send these."""
    small = sum(output.type.size for output in operator.outputs) < sites
    options = enumerate_flexible_candidates(operator, sites)
    return min(options, key=lambda c: (len(c.spec.functions), c.replicas if small else -c.replicas))
