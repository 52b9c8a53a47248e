"""The canonical text of a logical plan, for `--emit=logical`."""

from __future__ import annotations

from collections.abc import Iterator

from einc.core.intervals import Interval, ShardableIndex
from einc.graph.graph import Node
from einc.logical.plan import Choice, LogicalPlan


def dump(plan: LogicalPlan) -> str:
    """One paragraph per operator: the bounds of the intervals of each index, and the three sub-costs in elements."""
    how = plan.selector + (", exact" if plan.exact else "")
    lines = [
        f"logical plan {plan.graph.name}: {len(plan.choices)} operators over {plan.sites} sites ({how})",
        f"cost {plan.total_cost} elements; cut heuristic {plan.cut_cost}",
    ]
    for node, choice in zip(plan.graph.nodes, plan.choices, strict=True):
        lines += ["", *_paragraph(node, choice, plan.sites)]
    return "\n".join(lines) + "\n"


def _paragraph(node: Node, choice: Choice, sites: int) -> Iterator[str]:
    candidate = choice.candidate
    yield f"{', '.join(node.outputs)} = {node.operator.title}({', '.join(node.inputs)})"
    for index, intervals in zip(node.operator.indices, candidate.intervals, strict=True):
        yield f"  {_cut(index, intervals)}"
    used = len(candidate.spec.functions)
    if used < sites:
        yield f"  {sites - used} {'site' if sites - used == 1 else 'sites'} idle"
    yield (
        f"  cost {choice.cost} = repartition {choice.repartition} + join {candidate.join}"
        f" + aggregation {candidate.aggregation}"
    )


def _cut(index: ShardableIndex, intervals: tuple[Interval, ...]) -> str:
    bounds = " ".join(str(bound) for bound in (intervals[0][0], *(up for _, up in intervals)))
    return f"{index.name} in {len(intervals)}: {bounds}"
