"""What `einc explain` reports about a plan, as one JSON document made from the bundle alone.

The fields are a contract with scripts (`docs/cli.md`); a field whose value is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping

from einc.errors import OperatorError
from einc.graph.graph import Node
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.options import FASTEST
from einc.plan_reading.restore import restore_plan
from einc.plan_reading.timing import Label, Timing, make_labeller, read_plan_machine, time_plan
from einc.plan_report import PlanReport, explain_unknown, read_report
from einc.predict.ranges import name_rates
from einc.report.choices import describe_choices
from einc.report.division import describe_division
from einc.report.faster_cut import find_faster_cut
from einc.report.known_steps import describe_parallelism
from einc.report.launches import describe_launches
from einc.report.other_cuts import OtherCuts, describe_intervals
from einc.report.references import describe_references
from einc.report.step_parts import describe_step
from einc.report.times import describe_label_time, describe_limit, describe_time, describe_unlisted_peaks
from einc.report.told_layers import ToldLayers
from einc.report.weights import describe_tensor, describe_weights
from einc.search.lower_bound import bound_plans
from einc_runtime.plan.aggregate_definitions import find_definition
from einc_runtime.plan.regions import region_bytes
from einc_runtime.plan.repetition import unfold_statements
from einc_runtime.plan.schema import Block, Bundle, Exchange, Operation, TransferTask
from einc_runtime.strict_json import Document


def explain(
    bundle: Bundle,
    *,
    ideal: bool = False,
    all_specs: bool = False,
    only: str | None = None,
    timing: Timing | None = None,
    with_alternatives: bool = True,
) -> Document:
    """The whole document of a plan that may say a layer once; `only` leaves out all operators but one, `ideal` the
    machine's latencies.

    `timing` is that of the plan on that machine, if it is known already. Without `with_alternatives`, the next best
    cuts are null, which is faster.
    """
    machine, report, told = read_plan_machine(bundle), read_report(bundle), unfold_statements(bundle)
    timer = _ExchangeTimer(machine.ideal() if ideal else machine, machine)
    moves = _count_moves(bundle)
    timing = timing or time_plan(bundle, timer.machine)
    # The other cuts of an operator, and the bound on all plans, are those of plans that compute the batch at once.
    with_alternatives = with_alternatives and not report.stages
    try:
        plan = restore_plan(bundle) if with_alternatives else None
    except OperatorError:
        plan = None  # of another version of einc, whose operators and their other cuts this one does not know
    tiled = _has_tiles(bundle, report)
    cuts = None if plan is None or tiled else OtherCuts(plan, timer.machine, naive=bundle.schedule == "naive")
    layers = ToldLayers(told)
    operations = []
    for operation in bundle.operations:
        if only is None or operation.name == layers.find_said(only):
            document = _describe_operation(bundle, operation, timer)
            document["moves"] = moves.get((operation.name, False), _NO_TRAFFIC)
            document["time"] = describe_label_time(timing, (operation.name, False))
            document["next_best"] = None if cuts is None else cuts.find_next_best(operation.name)
            document["next_fastest"] = None if cuts is None else cuts.find_next_fastest(operation.name)
            document["other_cuts"] = [] if cuts is None else cuts.rank(operation.name)
            if all_specs:
                document["candidates"] = None if plan is None else _list_candidates(plan, operation.name)
            operations.append(document)
    operations = layers.tell_operations(operations, timing.periods_ms)
    operations = [row for row in operations if only is None or row["name"] == only]
    full_plan = None if plan is None else plan if told is bundle else restore_plan(told)
    document = {
        **describe_heading(bundle, report),
        "inputs": _describe_inputs(bundle),
        "ops": operations,
        "outputs": [
            {
                **describe_tensor(told.tensors[output.tensor]),
                "blocks": [_describe_block(region.block) for region in output.regions],
                "sites": [told.buffers[region.buffer].site for region in output.regions],
                "moves": moves.get((layers.find_said(name), True), _NO_TRAFFIC),
                "exchange": timer.describe(output.exchange),
                "time": layers.move_time(
                    describe_label_time(timing, (layers.find_said(name), True)), name, timing.periods_ms
                ),
            }
            for output, name in ((output, told.tensors[output.tensor].name) for output in told.outputs)
        ],
        "weights": layers.tell_weights(describe_weights(bundle)),
        "memory_bytes": list(bundle.memory),
        "memory_limit": report.memory_limit,
        "predicted_ms": timing.predicted_ms,
        "least_ms": None
        if full_plan is None or only is not None or tiled
        else _find_least(full_plan, timer.machine, timing),
        "predicted_range_ms": None if timing.range_ms is None else list(timing.range_ms),
        "rates": name_rates(timer.machine),
        "faster_cut": None
        if full_plan is None or only is not None or cuts is None
        else find_faster_cut(bundle, full_plan, timer.machine, operations),
        "references": describe_references(bundle, full_plan, timer.machine),
        "time": describe_time(timing),
        "limit": describe_limit(timer.machine, timing),
        "launches": describe_launches(told, timer.machine, timing.run, layers),
        "baselines": describe_baselines(report),
        "contenders": describe_contenders(report, machine),
        "memory_points": describe_memory_points(report, machine),
        "division": describe_division(report, timing),
        "parallelism": describe_parallelism(bundle),
        "step": None if only is not None else describe_step(told, operations),
        "note": describe_unlisted_peaks(bundle, machine),
        "unknown": explain_unknown(bundle),
    }
    return document | {"choices": describe_choices(document) if with_alternatives and only is None else None}


def describe_heading(bundle: Bundle, report: PlanReport) -> Document:
    """What was planned, for which machine, by which options, and at what cost (paper, Section 5)."""
    return {
        "model": bundle.model,
        "machine": bundle.machine,
        "devices": len(bundle.devices),
        "sites": list(bundle.devices),
        "selector": bundle.selector,
        "schedule": bundle.schedule,
        "input_placement": bundle.input_placement,
        "reproducible": bundle.reproducible,
        "unrestricted_ms": report.unrestricted_ms,
        "total_cost": bundle.total_cost,
        "exact": report.exact,
        "cut_cost": report.cut_cost,
    }


def _has_tiles(bundle: Bundle, report: PlanReport) -> bool:
    """Whether operators are computed in tiles: parts that are none of the batch. The bound for any plan, and the times
    of other cuts, have computing and sending one after the other, so they say nothing of such a plan."""
    return report.microbatches * report.replicas == 1 and any(operation.parts > 1 for operation in bundle.operations)


def _find_least(plan: LogicalPlan, machine: Machine, timing: Timing) -> float | None:
    """What any plan of this computation on these sites takes at least, in ms."""
    return bound_plans(plan.graph, machine, plan.sites, timing.predicted_ms) if timing.predicted_ms else None


def describe_baselines(report: PlanReport) -> list[Document]:
    """The well-known plans that this one was compared with."""
    return [
        {
            "name": row.name,
            "predicted_ms": row.predicted_ms,
            "memory_bytes": row.memory,
            "chosen": row.chosen,
            "note": row.note,
        }
        for row in report.baselines
    ]


def describe_contenders(report: PlanReport, machine: Machine) -> list[Document]:
    """The plans that the search for the fastest one considered; and whether the plan's machine has memory for them."""
    memory_there_is = min(site.memory_bytes for site in machine.sites)
    return [
        {
            "name": row.name,
            "predicted_ms": row.predicted_ms,
            "memory_bytes": row.memory,
            "total_cost": row.cost,
            "synthesized": row.synthesized,
            "promised_ms": row.promised_ms,
            "fits": None if row.memory is None else row.memory <= memory_there_is,
            "chosen": row.chosen,
            "reason": row.reason,
        }
        for row in report.contenders
    ]


def describe_memory_points(report: PlanReport, machine: Machine) -> list[Document]:
    """Time over memory, least memory first; and whether every site of the plan's machine has that memory."""
    memory_there_is = min(site.memory_bytes for site in machine.sites)
    return [
        {"memory_bytes": point.memory, "predicted_ms": point.predicted_ms, "fits": point.memory <= memory_there_is}
        for point in report.memory_points
    ]


_NO_TRAFFIC = {"transfers": 0, "bytes": 0}


def _describe_inputs(bundle: Bundle) -> list[Document]:
    """The inputs, each with the blocks that are loaded and their sites."""
    rows = {t: {**describe_tensor(tensor), "blocks": [], "sites": []}
            for t, tensor in enumerate(bundle.tensors) if tensor.kind == "input"}  # fmt: skip
    for buffer in bundle.buffers:
        if buffer.role == "input":
            rows[buffer.tensor]["blocks"].append(_describe_block(buffer.block))
            rows[buffer.tensor]["sites"].append(buffer.site)
    return list(rows.values())


def _describe_operation(bundle: Bundle, operation: Operation, timer: _ExchangeTimer) -> Document:
    busy = {function.site for function in operation.functions}
    return {
        "name": operation.name,
        "op": operation.title,
        "source": operation.source,
        "inputs": [bundle.tensors[t].name for t in operation.inputs],
        "outputs": [bundle.tensors[t].name for t in operation.outputs],
        "intervals": {index.name: [list(interval) for interval in index.intervals] for index in operation.indices},
        "replicas": operation.replicas,
        "parts": operation.parts,
        "cost": {
            "repartition": operation.cost.repartition,
            "join": operation.cost.join,
            "aggregation": operation.cost.aggregation,
        },
        "pin": operation.pin,
        "aggregate": _name_aggregation(operation),
        "specs": [
            {
                "site": function.site,
                "inputs": [_describe_block(block) for block in function.inputs],
                "outputs": [_describe_block(block) for block in function.outputs],
            }
            for function in operation.functions
        ],
        "idle_sites": [site for site in range(len(bundle.devices)) if site not in busy],
        "exchange": timer.describe(operation.exchange),
    }


def _name_aggregation(operation: Operation) -> str:
    """The names of its aggregations; one that the model defines has that of its definition."""
    definition = find_definition(str(operation.attributes.get("aggregation", "")))
    return ", ".join(dict.fromkeys(operation.aggregations)) if definition is None else definition.name


def _describe_block(block: Block) -> list[list[int]]:
    return [list(block.lower), list(block.upper)]


def _list_candidates(plan: LogicalPlan, name: str) -> list[Document]:
    """All join-agg specs that the optimizer chose from, where no pin restricts them."""
    from einc.logical.candidates import enumerate_candidates, enumerate_flexible_candidates

    enumerate_offer = enumerate_flexible_candidates if plan.selector == FASTEST else enumerate_candidates
    node = _find_node(plan, name)
    return [
        {
            "intervals": describe_intervals(node, candidate.intervals),
            "replicas": candidate.replicas,
            "cost": {"join": candidate.join, "aggregation": candidate.aggregation},
            "inputs": [
                [_describe_block(f.inputs[k]) for f in candidate.spec.functions] for k in range(len(node.inputs))
            ],
            "outputs": [
                [_describe_block(f.outputs[j]) for f in candidate.spec.functions] for j in range(len(node.outputs))
            ],
        }
        for candidate in enumerate_offer(node.operator, plan.sites)
    ]


def _find_node(plan: LogicalPlan, name: str) -> Node:
    return next(node for node in plan.graph.nodes if node.name == name)


def _count_moves(bundle: Bundle) -> Mapping[Label, Document]:
    """The number of transfers for every operator and output, and the bytes that they move."""
    moves: dict[Label, Document] = {}
    label = make_labeller(bundle)
    for task in bundle.tasks:
        if isinstance(task, TransferTask):
            row = moves.setdefault(label(task), {"transfers": 0, "bytes": 0})
            row["transfers"] += 1
            row["bytes"] += region_bytes(bundle, task.read)
    return moves


ExchangeTimes = tuple[float | None, float | None, float | None, str | None]
"""Of an exchange: its own time, that of the naive program, the lower bound, and what proves the bound."""


class _ExchangeTimer:
    """Times exchange programs on a machine; equal programs, as repeated blocks have, are timed once.

    `planned` is the machine that the plan was made for: `machine`, or the same with latencies and
    measured rates.
    """

    def __init__(self, machine: Machine, planned: Machine) -> None:
        self.machine = machine
        self._planned = planned
        self._known: dict[tuple[str, bool, str], Document] = {}

    def describe(self, exchange: Exchange | None) -> Document | None:
        if exchange is None:
            return None
        key = (exchange.program, exchange.naive, exchange.author)
        if key not in self._known:
            self._known[key] = self._time(exchange)
        return self._known[key]

    def _time(self, exchange: Exchange) -> Document:
        """What the plan says about an exchange. Missing times, and all times on another machine, are computed."""
        times = (exchange.completion_ms, exchange.naive_ms, exchange.bound_ms, exchange.bound_by)
        is_other = self._planned != self.machine
        if is_other or None in times:
            times = self._complete(exchange, (None,) * 4 if is_other else times)
        same_rates = (self._planned.sites, self._planned.resources) == (self.machine.sites, self.machine.resources)
        free_ms = exchange.bound_free_ms if same_rates else None  # that of peaks is not known
        if free_ms is not None:  # bounds have the latency of one transfer at most
            free_ms = max(0.0, free_ms - (self._planned.transfer_latency_us - self.machine.transfer_latency_us) / 1e3)
        completion, naive, bound_ms, bound_by = times
        return {
            "program": exchange.program,
            "completion_ms": completion,
            "naive_ms": naive,
            "bound_ms": bound_ms,
            "bound_free_ms": free_ms,
            "bound_by": bound_by,
            "splits": dict(exchange.splits),
            "author": exchange.author,
        }

    def _complete(self, exchange: Exchange, times: ExchangeTimes) -> ExchangeTimes:
        """The times with the missing ones computed, unless the program is too long to be read again."""
        from einc.exchange.bounds import bound
        from einc.exchange.language.parser import MAX_PROGRAM_TEXT, parse
        from einc.exchange.language.resolve import resolve
        from einc.exchange.naive import build_naive_body
        from einc.exchange.simulation.simulator import simulate

        if len(exchange.program) > MAX_PROGRAM_TEXT:
            return times
        machine, (completion, naive, bound_ms, bound_by) = self.machine, times
        program = resolve(parse(exchange.program, "exchange program"), machine)
        if completion is None or naive is None:
            completion = simulate(program, machine).completion_ms
            naive = (
                completion if exchange.naive else simulate(build_naive_body(program, machine), machine).completion_ms
            )
        if bound_ms is None or bound_by is None:
            certificate = bound(program, machine)
            bound_ms, bound_by = certificate.bound_ms, certificate.bound_by
        return completion, naive, bound_ms, bound_by
