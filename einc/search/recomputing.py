"""Plans of training steps: of those that compute values again where memory is short, and of those with many layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from einc.graph.graph import Graph
from einc.graph.layers import LAYERS
from einc.logical.optimize import optimize
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES
from einc.physical.program import DeviceProgram
from einc.search.layered_steps import LAYERED, MIN_LAYERED, LayeredStep, measure_peak_bytes
from einc.search.result import SelectedPlan
from einc.training.recomputation import ForwardPart, recompute

MAX_LEVELS = 4
"""Levels of recomputation that are planned at most: each takes as long as a step without; the last is the strongest."""
MARGIN, MARGIN_MANY_SITES = 0.04, 0.5
"""Of the memory of a site: what a plan is taken to need beyond its states and values, and again so much after each
that did not fit. Steps of Llama 8B for eight GPUs need 2% more, and 16% where they keep gathered weights. On many
sites, plans are chosen without regard to memory, and those of 70B need twice as much as their values."""

Level = tuple[str, int | None]
"""A level of `RECOMPUTATIONS`, and the number of blocks."""


@dataclass(frozen=True)  # no slots: it remembers the graphs of levels
class StepSearch:
    """The search for the plan of a training step: the step of the model, that of a few of its layers if it has more,
    its loss, and the machine with its sites.

    `fuse` makes a graph ready for planning, `search` plans it for a machine, and says of its progress which part of the
    step that is, `promise` has plans by name that time tables promise most of, `find_kept` plans the step as it is, and
    `build` makes the program of a plan. `may_recompute` says whether values may be computed again.
    """

    source: Graph
    small: Graph | None
    loss: str
    may_recompute: bool
    machine: Machine
    sites: int
    fuse: Callable[[Graph], Graph]
    search: Callable[[Graph, Machine, str], SelectedPlan]
    promise: Callable[[Graph, Machine], Mapping[str, LogicalPlan]]
    find_kept: Callable[[], tuple[Graph, SelectedPlan]]
    build: Callable[[LogicalPlan], DeviceProgram]
    report: Callable[[str], None]
    _graphs: dict[Level, Graph] = field(default_factory=dict)

    def find(self) -> tuple[Graph, SelectedPlan]:
        """The plan that computes least again and fits; one without a program if none does.

        A level is planned if it is likely to fit: by its states and values, evenly over the sites, and by what plans of
        earlier levels needed beyond theirs.
        """
        limit = min(site.memory_bytes for site in self.machine.sites)
        first, beyond = 0, int((MARGIN_MANY_SITES if self.sites > MANY_SITES else MARGIN) * limit)
        for _ in range(MAX_LEVELS - 1):
            number = self._find_likely(first, limit - beyond)
            if number == len(self._levels) - 1:
                break
            graph, selected, needed = self._plan(self._levels[number])
            if selected.program is not None:
                return graph, selected
            self.report("computing more values again, as no plan fits that keeps them")
            first, least = number + 1, self._measure_least(number)
            beyond = max(needed, beyond + least + int(MARGIN * limit)) - least
        return self._plan(self._levels[-1])[:2]

    @cached_property
    def _levels(self) -> list[Level]:
        """The levels, from the one that computes least again to the strongest."""
        if not self.may_recompute:
            return [("none", None)]
        count = len(ForwardPart(self.source, self.loss).between_blocks)
        return [("none", None), ("cheap", None), *(("blocks", n) for n in range(1, count - 1)), ("blocks", None)]

    def _find_likely(self, first: int, limit: int) -> int:
        """The first level from `first` on whose bytes are within the limit; the last one if none is."""
        low, high = first, len(self._levels) - 1
        while low < high:  # each keeps less than the one before; those that are no blocks are looked at first
            middle = low if low == first or low < 2 else (low + high) // 2
            low, high = (low, middle) if self._measure_least(middle) <= limit else (middle + 1, high)
        return low

    def _measure_least(self, number: int) -> int:
        """The bytes that a level takes of each site, if nothing is on two of them."""
        return measure_peak_bytes(self._make_graph(self._levels[number])) // self.sites

    def _make_graph(self, level: Level) -> Graph:
        if level not in self._graphs:
            self._graphs[level] = self.fuse(recompute(self.source, self.loss, *level))
        return self._graphs[level]

    def _plan(self, level: Level) -> tuple[Graph, SelectedPlan, int]:
        """The graph of a level, its plan, and the bytes of a site that are needed if none fits, as far as known."""
        graph = self._make_graph(level)
        if self.small is None or len(graph.nodes) < MIN_LAYERED:
            graph, selected = self.find_kept() if level[0] == "none" else (graph, self.search(graph, self.machine, ""))
            return graph, selected, _find_least_memory(selected)
        step = LayeredStep(graph, self.fuse(recompute(self.small, self.loss, level[0])))
        if self.sites > MANY_SITES:
            selected = step.select(self.promise(step.small_graph, self.machine), self.build)
            if selected.program is not None or level != self._levels[-1]:
                return graph, selected, 0
        machine, omitted = step.limit_memory(self.machine, self.sites), step.measure_omitted(self.sites)
        if machine is not None:
            selected = self.search(step.small_graph, machine, f" of {LAYERS} layers")
            if selected.program is not None:
                return graph, step.select({LAYERED: selected.plan}, self.build), 0
            omitted += _find_least_memory(selected)
        # A plan without a program for what is too large, so that an error says what it would take.
        return graph, SelectedPlan(optimize(graph, self.sites), None), omitted


def _find_least_memory(selected: SelectedPlan) -> int:
    return min((c.memory for c in selected.plan.contenders if c.memory is not None), default=0)
