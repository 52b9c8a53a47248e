"""The other candidates of each operator of a plan, and what the whole plan would cost with them."""

from __future__ import annotations

from dataclasses import dataclass

from einc.core.spec import Tiling, clip_tiling
from einc.logical.candidates import enumerate_candidates
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import find_part


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate in place of the chosen one, while all other operators keep theirs.

    `repartition` is the cost of the node's own inputs, `handover` that of the consumers of its outputs, and
    `total_cost` that of the whole plan, all in elements.
    """

    candidate: Candidate
    repartition: int
    handover: int
    total_cost: int


def list_alternatives(plan: LogicalPlan, node: str) -> tuple[Alternative, ...]:
    """The paper's candidates of the plan's node called `node`, and the chosen one, cheapest whole plan first.

    Ties are in the lexicographic order of intervals, and then by fewer replicas. Raises KeyError if there is no such
    node.
    """
    choices = {choice.node: choice for choice in plan.choices}
    this_node = plan.graph.nodes[plan.graph.positions[node]]
    producers, readers = plan.graph.producers(), plan.graph.consumers()
    arriving: list[tuple[int, Tiling, int]] = []  # input position, its producer's tiling of what is read, size
    for k, tensor in enumerate(this_node.inputs):
        if tensor in producers:
            source, j = producers[tensor]
            output_tilings = clip_tiling(
                choices[source.name].candidate.output_tilings[j], find_part(this_node.operator, k)
            )
            arriving.append((k, output_tilings, this_node.operator.reads[k].size))
    leaving = [  # output position, what a consumer reads of it, its tiling, size
        (
            j,
            find_part(reader.operator, k),
            choices[reader.name].candidate.input_tilings[k],
            reader.operator.reads[k].size,
        )
        for j, tensor in enumerate(this_node.outputs)
        for reader, k in readers[tensor]
    ]

    def sum_local_costs(candidate: Candidate) -> tuple[int, int]:
        repartition = sum(size for k, tiling, size in arriving if candidate.input_tilings[k] != tiling)
        output_tilings = candidate.output_tilings
        return repartition, sum(
            size for j, part, required, size in leaving if clip_tiling(output_tilings[j], part) != required
        )

    chosen = choices[node].candidate
    other_costs = plan.total_cost - chosen.join - chosen.aggregation - sum(sum_local_costs(chosen))
    alternatives = []
    offer = enumerate_candidates(this_node.operator, plan.sites)
    for candidate in offer if chosen in offer else (*offer, chosen):
        repartition, handover = sum_local_costs(candidate)
        total = other_costs + candidate.join + candidate.aggregation + repartition + handover
        alternatives.append(Alternative(candidate, repartition, handover, total))
    return tuple(
        sorted(
            alternatives,
            key=lambda alternative: (
                alternative.total_cost,
                alternative.candidate.intervals,
                alternative.candidate.replicas,
            ),
        )
    )


def find_next_best(plan: LogicalPlan, node: str) -> Alternative | None:
    """The cheapest alternative to the chosen candidate, or None if the operator has no other candidate."""
    chosen = plan.choices[plan.graph.positions[node]].candidate
    return next((alternative for alternative in list_alternatives(plan, node) if alternative.candidate != chosen), None)
