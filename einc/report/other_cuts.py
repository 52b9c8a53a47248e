"""The cuts that an operator of a plan could have instead, while all other operators keep theirs."""

from __future__ import annotations

from einc.core.intervals import Intervals
from einc.graph.graph import Node
from einc.logical.alternatives import find_next_best, list_alternatives
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.options import FASTEST
from einc.search.alternatives import MAX_RANKED, AlternativeTimer
from einc_runtime.strict_json import Document


class OtherCuts:
    """Finds them in one plan: by the paper's cost, and by time if the plan was chosen by time.

    `naive` says whether exchanges are timed as naive ones.
    """

    def __init__(self, plan: LogicalPlan, machine: Machine, *, naive: bool) -> None:
        self._plan = plan
        self._cost = plan.total_cost
        self._nodes = {node.name: node for node in plan.graph.nodes}
        self._timer = AlternativeTimer(plan, machine, naive=naive) if plan.selector == FASTEST else None
        self._next_best: dict[object, Document | None] = {}

    def find_next_best(self, name: str) -> Document | None:
        """The cheapest other cut of an operator, and how much more the whole plan would cost with it."""
        key = name if self._timer is None else self._timer.describe(name)
        if key not in self._next_best:
            alternative = find_next_best(self._plan, name)
            self._next_best[key] = (
                None
                if alternative is None
                else {
                    "intervals": describe_intervals(self._nodes[name], alternative.candidate.intervals),
                    "more": alternative.total_cost - self._cost,
                }
            )
        return self._next_best[key]

    def find_next_fastest(self, name: str) -> Document | None:
        """The fastest other cut of an operator; None for plans that were not chosen by time."""
        return None if self._timer is None else next(iter(self.rank(name)), None)

    def rank(self, name: str) -> list[Document]:
        """The best other cuts, at most MAX_RANKED: by time if the plan was chosen by time, else by the paper's cost.

        The first is what `find_next_fastest`, or else `find_next_best`, says.
        """
        if self._timer is not None:
            return self._rank_by_time(name)
        plan = self._plan
        chosen = next(choice.candidate for choice in plan.choices if choice.node == name)
        alternatives = [alternative for alternative in list_alternatives(plan, name) if alternative.candidate != chosen]
        return [
            {
                "intervals": describe_intervals(self._nodes[name], alternative.candidate.intervals),
                "replicas": alternative.candidate.replicas,
                "more": alternative.total_cost - self._cost,
            }
            for alternative in alternatives[:MAX_RANKED]
        ]

    def _rank_by_time(self, name: str) -> list[Document]:
        assert self._timer is not None
        return [
            {
                "intervals": describe_intervals(self._nodes[name], timed.candidate.intervals),
                "replicas": timed.candidate.replicas,
                "more_ms": timed.added_ms,
                "error_ms": timed.error_ms,
            }
            for timed in self._timer.rank(name)
        ]


def describe_intervals(node: Node, intervals: Intervals) -> Document:
    """The intervals of every shardable index of an operator, by name."""
    indices = zip(node.operator.indices, intervals, strict=True)
    return {index.name: [list(interval) for interval in chosen] for index, chosen in indices}
