"""Training steps of many layers: cuts are chosen for a step of a few layers, and used for all of them.

The step of a few layers is derived from the model with most of its layers left out (`folding`), as that of all of them
is. An operator of the whole step is cut as one of the small step that is equal, and whose name and inputs differ in
numbers alone. Any cuts make a plan that computes the step: what is matched decides how fast it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from einc.core.intervals import Intervals
from einc.errors import CapacityError
from einc.graph.graph import Graph, Node, count_resident_bytes
from einc.logical.optimize import build_choices
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import build_problem
from einc.machines.model import Machine
from einc.physical.program import DeviceProgram
from einc.plan_report import Contender
from einc.search.result import SelectedPlan
from einc.training.recomputation import AGAIN, ForwardPart

MIN_LAYERED = 1_000
"""Operators of a step from which on it is planned so: a search over as many takes minutes."""

LAYERED = "few layers"
"""The name of the contender whose cuts are those of a step of a few layers."""

_NUMBERS = re.compile(r"\d+")

Cut = tuple[Intervals, int]
"""The intervals of an operator's indices, and its replicas."""


@dataclass(frozen=True, slots=True)
class LayeredStep:
    """The fused graph of a whole training step, and that of a step of a few of its layers."""

    full_graph: Graph
    small_graph: Graph
    loss: str

    def limit_memory(self, machine: Machine, sites: int) -> Machine | None:
        """The machine without the memory that the other layers take at least, evenly over its sites: for what they
        keep, and for values that gradients read. None where nothing is left."""
        omitted = self._measure(self.full_graph) - self._measure(self.small_graph)
        left = min(site.memory_bytes for site in machine.sites) - omitted // sites
        return machine.limit_memory(left) if left > 0 else None

    def _measure(self, graph: Graph) -> int:
        table, part = graph.tensor_table(), ForwardPart(graph, self.loss)
        values = sum(table[name].desc.type.size * table[name].desc.dtype.itemsize for name in part.read_late)
        return count_resident_bytes(graph) + values

    def expand(self, plan: LogicalPlan, build: Callable[[LogicalPlan], DeviceProgram]) -> SelectedPlan:
        """The plan of the whole step with the cuts of one of the small step."""
        problem = build_problem(self.full_graph, plan.sites, flexible=True)
        chosen = [_find_cut(*pair) for pair in zip(problem.candidates, self._match(plan), strict=True)]
        choices = build_choices(self.full_graph, problem, chosen)
        full_plan = replace(plan, graph=self.full_graph, choices=choices, exact=False, contenders=(), memory_points=())
        try:
            program = build(full_plan)
        except CapacityError:
            return SelectedPlan(full_plan, None)
        contender = Contender(LAYERED, True, program.predicted_ms, max(program.memory), full_plan.total_cost)
        full_plan = replace(program.plan, contenders=(contender,))
        return SelectedPlan(full_plan, replace(program, plan=full_plan))

    def _match(self, plan: LogicalPlan) -> list[Cut | None]:
        """The cut of every node of the whole step; None for one that no operator of the small step is equal to."""
        cuts_by_key: dict[object, list[Cut]] = {}
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
            cut = choice.candidate.intervals, choice.candidate.replicas
            for key in _list_keys(node):
                cuts_by_key.setdefault(key, []).append(cut)
        matched: list[Cut | None] = []
        for node in self.full_graph.nodes:
            options = next((cuts_by_key[key] for key in _list_keys(node) if key in cuts_by_key), None)
            matched.append(None if options is None else options[len(options) // 2])
        return matched


def _list_keys(node: Node) -> list[object]:
    """What tells an operator from others, the most exact first."""
    name, *inputs = (_NUMBERS.sub("", text.replace(AGAIN, "")) for text in (node.name, *node.inputs))
    return [(node.operator, name, tuple(inputs)), (node.operator, name), node.operator]


def _find_cut(options: Sequence[Candidate], cut: Cut | None) -> int:
    """The candidate with a cut; the one that is cut least, on most sites, where there is none."""
    for number, candidate in enumerate(options):
        if (candidate.intervals, candidate.replicas) == cut:
            return number
    return min(range(len(options)), key=lambda c: (len(options[c].spec.functions), -options[c].replicas, c))
