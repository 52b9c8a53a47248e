"""Plans of training steps: of those that compute values again where memory is short, and of those with many layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from einc.graph.graph import Graph
from einc.logical.optimize import optimize
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.program import DeviceProgram
from einc.search.layered_steps import MIN_LAYERED, LayeredStep
from einc.search.result import SelectedPlan
from einc.training.recomputation import ForwardPart, recompute

Competitor = tuple[Graph, SelectedPlan | None]
"""A graph, and its plan; None where it is known to be too large."""


@dataclass(frozen=True, slots=True)
class StepSearch:
    """The search for the plan of a training step: the step of the model, that of a few of its layers if it has more,
    its loss, and the machine with its sites.

    `fuse` makes a graph ready for planning, `search` plans it for a machine, `find_kept` plans the step as it is, and
    `build` makes the program of a plan. `may_recompute` says whether values may be computed again.
    """

    source: Graph
    small: Graph | None
    loss: str
    may_recompute: bool
    machine: Machine
    sites: int
    fuse: Callable[[Graph], Graph]
    search: Callable[[Graph, Machine], SelectedPlan]
    find_kept: Callable[[], tuple[Graph, SelectedPlan]]
    build: Callable[[LogicalPlan], DeviceProgram]
    report: Callable[[str], None]

    def find(self) -> tuple[Graph, SelectedPlan]:
        """The fastest plan that fits, of those that compute more and more again; one without a program if none does.

        What is cheap is tried first, then everything between blocks. If only this fits, as few blocks are tried as are
        likely to fit, by the memory of both.
        """
        kept = self._plan("none")
        if self._fits(kept) or not self.may_recompute:
            return self._require(kept)
        self.report("computing again what is cheap, as nothing fits that keeps all values")
        cheap = self._plan("cheap")
        if self._fits(cheap):
            return self._require(cheap)
        self.report("computing again what is between blocks")
        best = self._plan("blocks")
        if not self._fits(best):
            return self._require(best if kept[1] is None else kept)
        blocks = self._count_blocks(cheap, best)
        if blocks is None:
            return self._require(best)
        self.report(f"computing again {blocks} blocks")
        some = self._plan("blocks", blocks)
        return self._require(min(some, best, key=_get_time))

    def _count_blocks(self, cheap: Competitor, best: Competitor) -> int | None:
        """How many blocks are likely to fit, between no blocks and all of them; None where that is neither."""
        count = len(ForwardPart(self.source, self.loss).between_blocks) - 1
        if cheap[1] is None or best[1] is None or best[1].program is None:
            return None
        most = max((c.memory or 0 for c in cheap[1].plan.contenders if c.chosen), default=0)
        least = max(best[1].program.memory)
        limit = min(site.memory_bytes for site in self.machine.sites)
        blocks = math.ceil(count * (most - limit) / max(1, most - least))
        return blocks if 0 < blocks < count else None

    def _plan(self, level: str, blocks: int | None = None) -> Competitor:
        graph = self.fuse(recompute(self.source, self.loss, level, blocks))
        if self.small is None or len(graph.nodes) < MIN_LAYERED:
            return self.find_kept() if level == "none" else (graph, self.search(graph, self.machine))
        step = LayeredStep(graph, self.fuse(recompute(self.small, self.loss, level)), self.loss)
        machine = step.limit_memory(self.machine, self.sites)
        selected = None if machine is None else self.search(step.small_graph, machine)
        if selected is None or selected.program is None:
            return graph, None
        return graph, step.expand(selected.plan, self.build)

    def _require(self, competitor: Competitor) -> tuple[Graph, SelectedPlan]:
        """A plan without a program for what is too large, so that an error says what it would take."""
        graph, selected = competitor
        if selected is None:
            paper = optimize(graph, self.sites)
            selected = SelectedPlan(paper, None)
        return graph, selected

    @staticmethod
    def _fits(competitor: Competitor) -> bool:
        return competitor[1] is not None and competitor[1].program is not None


def _get_time(competitor: Competitor) -> float:
    selected = competitor[1]
    return math.inf if selected is None or selected.program is None else selected.program.predicted_ms
