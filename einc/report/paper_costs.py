"""What `einc explain` says of the paper's cost, in elements: of a whole plan, of an operator, and of its other cuts."""

from __future__ import annotations

from einc.options import FASTEST
from einc.report.selection import find_paper_contender, find_times, format_span, is_chosen_plan
from einc.report.tables import format_cut
from einc_runtime.strict_json import Document

COST_PARTS = ("repartition", "join", "aggregation")
"""The three parts of the paper's cost (Section 4.4)."""


def sum_cost_parts(operation: Document) -> int:
    """The paper's cost of an operator, in elements."""
    cost: dict[str, int] = operation["cost"]
    return sum(cost[part] for part in COST_PARTS)


def sum_costs(document: Document, part: str) -> int:
    """One of COST_PARTS, of all operators together, in elements."""
    return sum(operation["cost"][part] for operation in document["ops"])


def compare_with_paper(document: Document) -> list[str]:
    """What the plan takes that is best by the paper's cost; nothing where the search did not build it."""
    paper = find_paper_contender(document)
    if paper is None:
        return []
    if paper["chosen"] or is_chosen_plan(paper, document):
        return ["the paper's cost would choose this plan, too"]
    took = find_times(paper)
    now = document["predicted_ms"]
    times = f", {format_span([ms / now for ms in took], 2)} times as long" if now else ""
    total = document["total_cost"]
    elements = f", with {paper['total_cost'] / total:.2g} times the elements" if total else ""
    return [f"the paper's cost would choose a plan of {format_span(took)} ms{times}{elements}"]


def format_costs(document: Document) -> list[str]:
    """The paper's cost of the whole plan. Only a plan that was chosen by it can be said to cost least."""
    pinned = " with these pins" if any(operation["pin"] for operation in document["ops"]) else ""
    proof = f"no plan{pinned} costs less; " if document["exact"] else ""
    parts = ", ".join(f"{part} {sum_costs(document, part):,}" for part in COST_PARTS)
    total = f"paper's cost {document['total_cost']:,} elements: {parts}"
    if document["selector"] == FASTEST or document["cut_cost"] is None:
        return [total]
    return [total, f"  ({proof}the cut heuristic finds {document['cut_cost']:,})"]


def format_operation_cost(operation: Document) -> str:
    """The paper's cost of one operator, and its parts."""
    cost = operation["cost"]
    together = f"  combined by {operation['aggregate']}" if cost["aggregation"] else ""
    parts = " + ".join(f"{part} {cost[part]:,}" for part in COST_PARTS)
    return f"paper's cost {sum_cost_parts(operation):,} = {parts}{together}"


def format_cheapest(operation: Document) -> str:
    """The cheapest other cut of an operator, and what the plan would cost with it."""
    alternative, now = operation["next_best"], sum_cost_parts(operation)
    if alternative is None:
        return "there is no other cut"
    more = alternative["more"]
    if more == 0:
        return f"{format_cut(alternative)} costs as much"
    share = f" ({more / now:+.0%} of this operator's cost)" if now else ""
    return (
        f"{format_cut(alternative)}, the plan then costs {abs(more):,} elements {'more' if more > 0 else 'less'}{share}"
    )
