"""From a configuration to its outcome: one compilation, by the same calls as the command line's."""

from __future__ import annotations

from typing import Any

from tests.bench.experiments.configurations import MODELS, Configuration, Outcome


def compile_configuration(configuration: Configuration) -> Outcome:
    """The plan's figures."""
    from einc.compiler import compile_model
    from einc.errors import CapacityError, MachineError
    from einc.options import BASELINES, CompileOptions

    text = (MODELS / f"{configuration.model}.ein").read_text(encoding="utf-8")
    known = configuration.selector in BASELINES
    options = CompileOptions(
        machine=configuration.machine,
        devices=configuration.sites,
        preset=configuration.preset,
        selector="eindecomp" if known else configuration.selector,
        baselines=(configuration.selector,) if known else (),
        schedule=configuration.schedule,
        seed=configuration.seed,
        input_placement=configuration.placement,
    )
    compiled = compile_model(text, f"{configuration.model}.ein", options)
    try:
        return _baseline(compiled.bundle) if known else _figures(compiled)
    except (CapacityError, MachineError) as error:
        return Outcome(problem=error.message)


def _baseline(bundle: Any) -> Outcome:
    """The fastest variant of the well-known plan that was asked for, whether or not it is faster than the optimizer's;
    of it, only the time and the memory are known."""
    from einc.plan_report import read_report

    baselines = read_report(bundle).baselines
    built = [row for row in baselines if row.predicted_ms is not None]
    if not built:
        return Outcome(problem="; ".join(f"{row.name}: {row.note}" for row in baselines))
    best = min(built, key=lambda row: row.predicted_ms)
    return Outcome(predicted_ms=best.predicted_ms, memory=best.memory or 0, cuts=(("variant", best.name),))


def _figures(compiled: Any) -> Outcome:
    from einc.predict.costs import TaskKind, compute_task_costs
    from einc.predict.timeline import time_tasks

    program, plan = compiled.program, compiled.plan
    costs = compute_task_costs(program)
    free = [cost if cost.kind is TaskKind.KERNEL else cost._replace(kind=TaskKind.FENCE, size=0) for cost in costs]
    cuts = tuple(
        (
            node.name,
            " ".join(
                f"{index.name}/{len(intervals)}"
                for index, intervals in zip(node.operator.indices, choice.candidate.intervals, strict=True)
                if len(intervals) > 1
            )
            or "whole",
        )
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
    )
    return Outcome(
        predicted_ms=program.predicted_ms,
        free_ms=time_tasks(free, compiled.target.machine).predicted_ms,
        cost=plan.total_cost,
        moved=sum(cost.size for cost in costs if cost.kind is TaskKind.TRANSFER),
        memory=max(program.memory),
        cuts=cuts,
    )
