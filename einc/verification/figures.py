"""Proves the figures of a plan against what they are computed from: its cuts, its tasks and the machine file in it."""

from __future__ import annotations

import math

from einc.core.spec import clip_tiling
from einc.errors import EincError, InternalError
from einc.graph.graph import Graph
from einc.logical.optimize import choose_by_cuts
from einc.logical.pins import Pin, parse_pin
from einc.logical.plan import Choice, LogicalPlan
from einc.logical.problem import build_problem, find_part
from einc.machines.load import format_machine
from einc.machines.model import Machine
from einc.options import FASTEST, SCHEDULES, SELECTORS
from einc.physical.memory import ALIGNMENT
from einc.plan_reading.restore import restore_plan
from einc.plan_reading.timing import MAX_EFFORT, read_plan_machine
from einc.plan_report import PlanReport, explain_unknown, read_report
from einc.predict.repeated import predict_whole
from einc.predict.timeline import TooLarge, predict
from einc.verification.comparison import require_equal, require_time
from einc.verification.exchanges import verify_exchanges
from einc_runtime.errors import PlanFault
from einc_runtime.plan.regions import buffer_bytes
from einc_runtime.plan.repetition import unfold
from einc_runtime.plan.schema import Bundle, KernelTask, Operation

FIGURES_CLAIM = (
    "costs, memory, times, bounds and exchange programs are those of the cuts, the tasks and the machine file"
)
"""What `verify_figures` proves."""

MAX_OPERATIONS = 5000
"""Larger plans keep the cost of the cut heuristic that they state, which would take long to compute."""

_OTHERS = "the times of other plans than this one (contenders, baselines, memory points)"
_LABELS = "which devices of the whole machine the sites are, who made the plan, and lines of the model's text"
_CHOICE = "how the plan was chosen, as it has no report that this einc can read"
_OPTIMUM = "that no plan costs less (`exact`)"


def verify_figures(folded: Bundle) -> tuple[str, ...]:
    """What remains unproved of a plan, as its file says it, in words. Raises PlanFault at the first figure that is not
    what it should be."""
    try:
        return _verify(unfold(folded), folded)
    except InternalError:
        raise
    except EincError as error:
        raise PlanFault(error.message, where=None if error.where is None else str(error.where)) from None


def _verify(bundle: Bundle, folded: Bundle) -> tuple[str, ...]:
    machine = read_plan_machine(bundle)
    plan = restore_plan(bundle)
    report = read_report(bundle)
    _verify_header(bundle, report, machine)
    for o, (operation, choice) in enumerate(zip(bundle.operations, plan.choices, strict=True)):
        _verify_operation(f"operations[{o}] ('{operation.name}')", operation, plan.graph, choice)
    _verify_costs(bundle, plan)
    _verify_tasks(bundle)
    _verify_memory(bundle, machine)
    left = list(verify_exchanges(bundle, machine))
    left += _verify_times(folded, machine)
    left += _verify_selection(bundle, report, plan)
    return (*left, _LABELS)


def _verify_header(bundle: Bundle, report: PlanReport, machine: Machine) -> None:
    if bundle.machine_file != format_machine(machine):
        raise PlanFault("it is not written as the compiler writes machines", where="machine_file")
    require_equal("machine", bundle.machine, machine.name)
    if report.memory_limit is not None:
        require_equal("memory_limit", report.memory_limit, max(site.memory_bytes for site in machine.sites))
    if len(machine.sites) != len(bundle.devices):
        count = len(machine.sites)
        raise PlanFault(f"{count} sites, where the plan has {len(bundle.devices)}", where="machine_file")
    if bundle.schedule not in SCHEDULES.values():
        raise PlanFault(f"'{bundle.schedule}' is no schedule", where="schedule")
    if bundle.selector not in SELECTORS:
        raise PlanFault(f"'{bundle.selector}' is no selector", where="selector")
    if report.exact and bundle.selector != "eindecomp":
        raise PlanFault(f"the selector '{bundle.selector}' gives no exact optimum", where="exact")
    if (report.contenders or report.memory_points) and bundle.selector != FASTEST:
        raise PlanFault(f"the selector '{bundle.selector}' compares no plans", where="contenders")


def _verify_operation(where: str, operation: Operation, graph: Graph, choice: Choice) -> None:
    """An operation against the operator that its family and attributes name, and its cut."""
    operator = next(node.operator for node in graph.nodes if node.name == operation.name)
    require_equal(f"{where}.title", operation.title, operator.title)
    require_equal(f"{where}.precision", operation.precision, operator.precision)
    require_equal(f"{where}.kernel", operation.kernel, operator.kernel.name)
    attributes = {
        name: (list(value) if isinstance(value, tuple) else value) for name, value in sorted(operator.kernel.attributes)
    }
    require_equal(f"{where}.kernel_attributes", operation.kernel_attributes, attributes)
    require_equal(f"{where}.aggregations", operation.aggregations, tuple(operator.aggregations))
    require_equal(f"{where}.joint_aggregations", operation.joint_aggregations, operator.joint_aggregations)
    for k, (index, operator_index) in enumerate(zip(operation.indices, operator.indices, strict=True)):
        described = (operator_index.name, operator_index.extent, operator_index.cuts)
        require_equal(f"{where}.indices[{k}]", (index.name, index.extent, index.cuts), described)
    for f, (function, spec) in enumerate(zip(operation.functions, choice.candidate.functions, strict=True)):
        at = f"{where}.functions[{f}]"
        require_equal(f"{at}.inputs", function.inputs, spec.inputs)
        require_equal(f"{at}.outputs", function.outputs, spec.outputs)
        require_equal(f"{at}.flops", function.flops, operator.flops(spec))
        require_equal(f"{at}.traffic", function.traffic, operator.traffic(spec))
        require_equal(f"{at}.work", function.work, operator.work(spec))


def _verify_costs(bundle: Bundle, plan: LogicalPlan) -> None:
    """The costs of the paper's model (Section 4.3), from the blocks of the functions."""
    produced = {
        name: choice.candidate.output_tilings[j]
        for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
        for j, name in enumerate(node.outputs)
    }
    for o, (operation, choice) in enumerate(zip(bundle.operations, plan.choices, strict=True)):
        node, where = plan.graph.nodes[o], f"operations[{o}] ('{operation.name}').cost"
        functions = operation.functions
        join = sum(block.size for function in functions for block in function.inputs)
        written = sum(block.size for function in functions[: operation.distinct] for block in function.outputs)
        output_elements = sum(math.prod(bundle.tensors[t].shape) for t in operation.outputs)
        repartition = 0
        for k, name in enumerate(node.inputs):
            if name in produced:
                produced_part = clip_tiling(produced[name], find_part(node.operator, k))
                if produced_part != choice.candidate.input_tilings[k]:
                    repartition += node.operator.reads[k].size
        require_equal(f"{where}.join", operation.cost.join, join)
        require_equal(f"{where}.aggregation", operation.cost.aggregation, written - output_elements)
        require_equal(f"{where}.repartition", operation.cost.repartition, repartition)


def _verify_tasks(bundle: Bundle) -> None:
    """Every kernel serves its own operation, so that reports count its time there."""
    for position, task in enumerate(bundle.tasks):
        if isinstance(task, KernelTask):
            require_equal(f"tasks[{position}].serves", task.serves, bundle.operations[task.operation].name)


def _verify_memory(bundle: Bundle, machine: Machine) -> None:
    """Every arena ends where the last buffer of its site ends, and the site has so much memory."""
    ends = [0] * len(bundle.devices)
    for buffer in bundle.buffers:
        ends[buffer.site] = max(ends[buffer.site], buffer.offset + buffer_bytes(bundle, buffer))
    for site, end in enumerate(ends):
        require_equal(f"memory[{site}]", bundle.memory[site], -(-end // ALIGNMENT) * ALIGNMENT)
        if end > machine.sites[site].memory_bytes:
            raise PlanFault(f"the site has {machine.sites[site].memory_bytes} bytes", where=f"memory[{site}]")


def _verify_times(bundle: Bundle, machine: Machine) -> list[str]:
    if bundle.predicted_ms is None:
        return []
    try:
        timed = predict(bundle, machine, MAX_EFFORT)
    except TooLarge:
        return ["`predicted_ms`: the plan is too large to be simulated here"]
    require_time("predicted_ms", bundle.predicted_ms, predict_whole(bundle, timed))
    return []


def _verify_selection(bundle: Bundle, report: PlanReport, plan: LogicalPlan) -> list[str]:
    """The pins, the cost of the cut heuristic, and the plan itself among those that it was compared with."""
    _verify_pins(bundle, plan)
    if explain_unknown(bundle) is not None:
        return [_CHOICE]
    left = []
    if len(bundle.operations) > MAX_OPERATIONS:
        left.append("`cut_cost`: the plan is too large for the cut heuristic")
    else:
        pins = tuple(Pin(operation.name, operation.pin) for operation in bundle.operations if operation.pin is not None)
        problem = build_problem(plan.graph, plan.sites, pins=pins)
        require_equal("cut_cost", report.cut_cost, problem.cost(choose_by_cuts(problem)))
    if report.exact:
        if report.cut_cost is None or bundle.total_cost > report.cut_cost:
            raise PlanFault("the cut heuristic finds a plan that costs less", where="exact")
        left.append(_OPTIMUM)
    chosen = [(f"baselines[{i}]", row) for i, row in enumerate(report.baselines) if row.chosen]
    if len(chosen) + sum(row.chosen for row in report.contenders) > 1:
        raise PlanFault("more than one plan is said to be the one that was chosen", where="contenders")
    for where, baseline in chosen:
        require_time(f"{where}.predicted_ms", baseline.predicted_ms or 0.0, bundle.predicted_ms or 0.0)
        require_equal(f"{where}.memory", baseline.memory, max(bundle.memory))
    for i, contender in enumerate(report.contenders):
        if contender.chosen:
            require_equal(f"contenders[{i}].cost", contender.cost, bundle.total_cost)
    return [*left, _OTHERS] if report.contenders or report.baselines or report.memory_points else left


def _verify_pins(bundle: Bundle, plan: LogicalPlan) -> None:
    """Every operator that a person named is cut as they wrote."""
    pins = tuple(
        parse_pin(f"{operation.name}={operation.pin}", operation.name)
        for operation in bundle.operations
        if operation.pin is not None
    )
    if not pins:
        return
    offered = build_problem(plan.graph, plan.sites, flexible=True, pins=pins).candidates
    for operation, choice, candidates in zip(bundle.operations, plan.choices, offered, strict=True):
        cut = (choice.candidate.intervals, choice.candidate.replicas)
        if operation.pin is not None and cut not in [
            (candidate.intervals, candidate.replicas) for candidate in candidates
        ]:
            raise PlanFault(f"'{operation.pin}' is not how '{operation.name}' is cut", where="pin")
