"""What else the same model could take: on one site, and with the same cuts and naive exchanges."""

from __future__ import annotations

from einc.errors import EincError
from einc.logical.candidates import restore_candidate
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.ops.base import Operator
from einc.predict.costs import compute_occupied_ms, describe_operator
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document

MAX_TRIED_TASKS = 10_000
"""No other plan is built beside larger ones, neither with another cut nor with naive exchanges: it takes seconds."""


def describe_references(bundle: Bundle, plan: LogicalPlan | None, machine: Machine) -> Document:
    """`one_site_ms`, what site 0 alone would take, whether or not its memory is enough; and `naive_ms`, what these
    cuts take with naive exchanges. A time that is not known is null."""
    if plan is None:
        return {"one_site_ms": None, "naive_ms": None}
    return {"one_site_ms": _time_one_site(plan, machine), "naive_ms": _time_naive(bundle, plan, machine)}


def _time_one_site(plan: LogicalPlan, machine: Machine) -> float | None:
    """All kernels one after the other; on a machine whose sites share cores that would say nothing."""
    if machine.cores is not None:
        return None
    known: dict[Operator, float] = {}
    total = 0.0
    for node in plan.graph.nodes:
        operator = node.operator
        if operator not in known:
            uncut = restore_candidate(operator, tuple(((0, index.extent),) for index in operator.indices), 1)
            if uncut is None:
                return None
            cost = describe_operator(operator, uncut.functions[0])
            known[operator] = compute_occupied_ms(cost, machine.sites[0], machine.kernel_latency_us)
        total += known[operator]
    return total


def _time_naive(bundle: Bundle, plan: LogicalPlan, machine: Machine) -> float | None:
    if len(bundle.tasks) > MAX_TRIED_TASKS:
        return None
    from einc.physical.build import build
    from einc.physical.schedule import NaiveScheduler

    try:
        return build(plan, machine, NaiveScheduler(machine, plan.sites, timed=False)).predicted_ms
    except EincError:  # naive exchanges may need more memory than there is
        return None
