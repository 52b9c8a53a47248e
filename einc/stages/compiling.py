"""What a compilation does where its options ask for stages, micro-batches or replicas."""

from __future__ import annotations

from collections.abc import Callable

from einc.errors import UsageError
from einc.graph.graph import Graph
from einc.machines.model import Machine
from einc.options import FASTEST, MAX_DIVISIONS, CompileOptions
from einc.physical.budget import SearchBudget
from einc.search.result import SelectedPlan
from einc.stages.choice import ShapeRequest, ShapeSearch

FOR_SHAPES = 0.5
"""The part of a time limit that is kept for plans with stages, micro-batches and replicas."""

Competitor = tuple[Graph, SelectedPlan]
"""A graph, and its plan."""


def find_divided(
    graph: Graph,
    machine: Machine,
    sites: int,
    options: CompileOptions,
    budget: SearchBudget,
    find_undivided: Callable[[], Competitor],
    progress: Callable[[str, float], None],
) -> Competitor:
    """The fastest plan of the shapes that the options allow, and its graph: that of `find_undivided`, with one stage,
    micro-batch and replica, may be one of them.

    Raises UsageError for shapes that are not possible, and for options that say something else of the whole plan;
    CapacityError where no plan fits into memory.
    """
    _check(options)
    request = ShapeRequest(options.stages, options.microbatches, options.replicas)
    allowed = all(count in (None, 1) for count in (request.stages, request.microbatches, request.replicas))
    budget.begin()
    budget.hold_back(FOR_SHAPES)
    undivided_graph, undivided = find_undivided() if allowed else (graph, None)
    budget.begin()
    budget.release()
    search = ShapeSearch(
        graph,
        machine,
        sites,
        naive=options.schedule == "naive",
        budget=budget,
        seed=options.seed,
        progress=progress,
    )
    best = search.find_best(request, undivided)
    budget.end()
    return (undivided_graph if best.plan.division is None else graph), best


def _check(options: CompileOptions) -> None:
    if options.selector != FASTEST:
        raise UsageError("stages, micro-batches and replicas are chosen by time", hint="leave out --selector")
    refused = {
        "--pin": options.pins,
        "--exchange": options.exchanges,
        "--train": options.train,
        "--input-placement once": options.input_placement == "once",
    }
    for spelling, is_set in refused.items():
        if is_set:
            raise UsageError(
                f"a plan with stages, micro-batches or replicas cannot have {spelling}",
                hint=f"leave out {spelling.split()[0]}, or --stages, --microbatches, --replicas and --objective",
            )
    for count, spelling in (
        (options.stages, "--stages"),
        (options.microbatches, "--microbatches"),
        (options.replicas, "--replicas"),
    ):
        if count is not None and not 1 <= count <= MAX_DIVISIONS:
            raise UsageError(f"{spelling} is {count}, and must be between 1 and {MAX_DIVISIONS}")
