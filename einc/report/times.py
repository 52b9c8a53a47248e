"""Predicted times as parts of the document of `einc explain`: of a plan, and of its operators and outputs."""

from __future__ import annotations

from einc.machines.model import Machine
from einc.plan_reading.timing import Label, Timing, find_limit, find_peak_parts, read_plan_machine, time_plan
from einc.predict.breakdown import LabelTime
from einc.predict.ranges import name_rates
from einc_runtime.plan.element_types import list_peaks
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document


def describe_label_time(timing: Timing, label: Label) -> Document | None:
    """The time of what bears a label; None where the plan is too large to be simulated."""
    if timing.breakdown is None:
        return None
    time = timing.breakdown.labels.get(label) or LabelTime(start=0.0)
    return {
        "start_ms": time.start,
        "end_ms": time.end,
        "compute_ms": time.compute,
        "combine_ms": time.combine,
        "waiting_ms": time.waiting,
        "exchange_ms": time.exchange,
        "critical_ms": time.critical,
    }


def describe_time(timing: Timing) -> Document | None:
    """The plan as a whole; resources that nothing crosses are left out."""
    if timing.breakdown is None:
        return None
    kernels, combining, transfers = timing.breakdown.critical
    return {
        "critical": {"compute_ms": kernels, "combine_ms": combining, "transfer_ms": transfers},
        "tail_ms": timing.breakdown.tail,
        "site_ms": list(timing.breakdown.sites),
        "links": [
            {"name": link.name, "bytes": link.carried, "busy_ms": link.busy, "full_ms": link.full}
            for link in timing.breakdown.links
            if link.carried
        ],
    }


def describe_limit(machine: Machine, timing: Timing) -> Document | None:
    """What takes most of the critical path, and how much of the peak rates of all sites the plan reaches. None for a
    plan that was not timed, and where sites share cores, whose rates are no peaks of one site."""
    if machine.cores is not None or not timing.predicted_ms:
        return None
    limit, part = find_limit(timing, machine)
    if limit is None:
        return None
    computing, reading = find_peak_parts(timing, machine)
    return {"by": limit, "part": part, "peak_flops_part": computing, "peak_memory_part": reading}


def describe_prediction(bundle: Bundle) -> Document:
    """The range of a plan's predicted time, and where the times of its kernels come from, as `explain` says it."""
    machine = read_plan_machine(bundle)
    rates = name_rates(machine)
    span = time_plan(bundle, machine).range_ms if rates == "fitted" else None
    return {"predicted_range_ms": None if span is None else list(span), "rates": rates}


def describe_unlisted_peaks(bundle: Bundle, machine: Machine) -> str | None:
    """A note on element types that the plan computes in and the machine file has no peak for, if any."""
    used = {operation.precision for operation in bundle.operations if any(f.flops for f in operation.functions)}
    listed = set.intersection(*({name for name, _ in site.flops} for site in machine.sites))
    used = {name for name in used if not listed & set(list_peaks(name)[:-1])}  # the last one is f32
    if not used - listed:
        return None
    rule = "as f32" if "f32" in listed else "as if computing took no time, its bytes alone"
    return f"{machine.name} lists no FLOP/s for {' and '.join(sorted(used - listed))}: timed {rule}"
