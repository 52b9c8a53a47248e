"""Plans of a shape: the ordinary search plans one part of the batch on as many sites as a stage has, and each stage
takes its operators' cuts from that plan.

Stages are runs of nodes, in the graph's order, that take about equally long. A cut costs what crosses it: the next
stage has each part later by this time. So stages end where little crosses, as between two layers, unless others would
be much longer then.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from einc.errors import UsageError
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.logical.candidates import restore_candidate
from einc.logical.division import Division, DivisionShape
from einc.logical.optimize import build_choices
from einc.logical.plan import Candidate, LogicalPlan
from einc.logical.problem import connect
from einc.machines.model import BYTES_PER_MS, MS_PER_US, Machine
from einc.ops.wrapping import BatchPart
from einc.options import FASTEST
from einc.physical.budget import SearchBudget
from einc.physical.program import DeviceProgram
from einc.predict.cores import list_run_tasks
from einc.predict.timeline import time_tasks
from einc.search.fastest import find_fastest
from einc.stages.batch import BatchCut
from einc_runtime.plan.repetition import repeat
from einc_runtime.plan.schema import KernelTask


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A plan of one part of the batch, on the sites of one stage.

    `candidates[n]` is how node n of the graph is cut in it, and `times[n]` how much later it ends than all nodes before
    it, in ms. `memory` is what its fullest site needs.
    """

    cut: BatchCut
    candidates: tuple[Candidate, ...]
    times: tuple[float, ...]
    memory: int


@dataclass(frozen=True, slots=True)
class DividedPlan:
    """A plan of a shape, before it is built, and about what it takes in ms: every stage computes one part after the
    other, each when the stage before it has made it and has sent what this one reads."""

    plan: LogicalPlan
    ms: float


def plan_part(
    cut: BatchCut, machine: Machine, sites: int, *, naive: bool, seed: int, budget: SearchBudget, room: int = 1
) -> PartPlan | None:
    """The fastest plan of one part on the first sites of a machine, each with `room` times its memory, as that many
    stages share what the model needs. None if none fits.

    Nodes that are computed once are planned as if they belonged to the part, with all that they read.
    """
    graph = make_part_graph(cut)
    part_machine = machine.restrict(range(sites))
    roomy = [replace(site, memory_bytes=site.memory_bytes * room) for site in part_machine.sites]
    part_machine = replace(part_machine, sites=tuple(roomy))
    selected = find_fastest(graph, part_machine, sites, naive=naive, budget=budget, seed=seed)
    return None if selected.program is None else describe_part(cut, selected.program, part_machine)


def describe_part(cut: BatchCut, program: DeviceProgram, machine: Machine) -> PartPlan:
    """What the program of a plan of one part says; it may visit the nodes in any order."""
    candidates = {choice.node: choice.candidate for choice in program.plan.choices}
    times = time_nodes(program, machine)
    names = [node.name for node in cut.graph.nodes]
    return PartPlan(
        cut, tuple(candidates[name] for name in names), tuple(times[name] for name in names), max(program.memory)
    )


def make_part_graph(cut: BatchCut) -> Graph:
    """The graph of one part. What a node that is computed once reads of all parts is an input of the graph."""
    if cut.parts == 1:
        return cut.graph
    table = cut.graph.tensor_table()
    tensors: dict[str, GraphTensor] = {}
    nodes: list[Node] = []
    divided: set[str] = set()
    for number, node in enumerate(cut.graph.nodes):
        operator = cut.make_operator(number)
        inputs = []
        for name, desc in zip(node.inputs, operator.inputs, strict=True):
            renamed = name
            if number in cut.late and name in divided:
                renamed = f"{name} of all parts"
                tensors[renamed] = GraphTensor(renamed, desc, TensorKind.INPUT)
            elif name not in tensors:
                tensors[name] = replace(table[name], desc=desc)
            elif tensors[name].desc != desc:
                # An input or weight of which operators read parts, and others all of it.
                renamed = f"{name} for {node.name}"
                tensors[renamed] = replace(table[name], name=renamed, desc=desc)
            inputs.append(renamed)
        for name, desc in zip(node.outputs, operator.outputs, strict=True):
            tensors[name] = replace(table[name], desc=desc)
        if cut.index_of[number] is not None:
            divided.update(node.outputs)
        nodes.append(replace(node, operator=operator, inputs=tuple(inputs)))
    return replace(cut.graph, tensors=tuple(tensors.values()), nodes=tuple(nodes))


def time_nodes(program: DeviceProgram, machine: Machine) -> dict[str, float]:
    """By how much every node ends later than all before it, in ms."""
    run = list_run_tasks(program, machine)
    ends: dict[int, float] = {}
    for origin, end in zip(run.origins, time_tasks(run.costs, machine).ends, strict=True):
        task = program.tasks[origin]
        if isinstance(task, KernelTask):
            ends[task.operation] = max(end, ends.get(task.operation, 0.0))
    times, latest = list[float](), 0.0
    for number in range(len(program.operations)):
        end = max(latest, ends.get(number, 0.0))
        times.append(end - latest)
        latest = end
    repetition = program.repetition
    if repetition is not None:
        times = [*repeat(times, repetition.operations, repetition.head, len(repetition.copies), lambda ms, *_: ms)]
    return {node.name: ms for node, ms in zip(program.plan.graph.nodes, times, strict=True)}


def list_groups(shape: DivisionShape, sites: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The sites of every stage of every replica: neighbours, as those have the widest links between them."""
    size = sites // shape.groups
    return tuple(
        tuple(
            tuple(range((replica * shape.stages + stage) * size, (replica * shape.stages + stage + 1) * size))
            for stage in range(shape.stages)
        )
        for replica in range(shape.replicas)
    )


def divide_plan(
    part: PartPlan, shape: DivisionShape, machine: Machine, sites: int, stages: Sequence[int] | None = None
) -> DividedPlan | None:
    """The plan of a shape whose parts are cut as in the plan of one part. `stages` are those of all nodes that are not
    late; without them, they take about equally long. None where the graph has too few nodes."""
    graph, cut = part.cut.graph, part.cut
    groups = list_groups(shape, sites)
    moves = _estimate_moves_ms(cut, machine, groups[0])
    timely = [number for number in range(len(graph.nodes)) if number not in cut.late]
    stages = stages or cut_stages([part.times[n] for n in timely], [moves[n] for n in timely], shape.stages)
    if stages is None:
        return None
    stage_of = [shape.stages - 1] * len(graph.nodes)
    for number, stage in zip(timely, stages, strict=True):
        stage_of[number] = stage
    plan = _spread(part, Division(shape, tuple(stage_of), cut.index_of, cut.late, groups), sites)
    times = [0.0] * shape.stages
    for number in timely:
        times[stage_of[number]] += part.times[number]
    crossed = [moves[a] for a, b in itertools.pairwise(timely) if stage_of[a] != stage_of[b]]
    late_ms = sum(part.times[number] for number in cut.late)
    return DividedPlan(plan, run_pipeline(times, crossed, shape.microbatches) + late_ms)


def run_pipeline(times: Sequence[float], moves: Sequence[float], microbatches: int) -> float:
    """When a pipeline ends whose stages take these times for each micro-batch, with moves between neighbours: a stage
    begins with a micro-batch when it has done the one before, and the stage before it has sent this one."""
    free = [0.0] * len(times)
    for _ in range(microbatches):
        ready = 0.0
        for stage, took in enumerate(times):
            free[stage] = max(free[stage], ready) + took
            ready = free[stage] + (moves[stage] if stage < len(moves) else 0.0)
    return free[-1]


def _spread(part: PartPlan, division: Division, sites: int) -> LogicalPlan:
    """The plan of all parts, each cut as the one that was planned."""
    graph = part.cut.graph
    candidates = []
    for number, (node, candidate) in enumerate(zip(graph.nodes, part.candidates, strict=True)):
        operator = part.cut.make_operator(number)
        if isinstance(operator, BatchPart):
            intervals = operator.spread_intervals(candidate.intervals)
            try:
                candidate = restore_candidate(node.operator, intervals, candidate.replicas)
            except ValueError as error:
                raise UsageError(f"operator '{node.name}' cannot be cut in parts as one part is: {error}") from None
        candidates.append((candidate,))
    choices = build_choices(graph, connect(graph, tuple(candidates)), [0] * len(candidates))
    return LogicalPlan(graph, sites, FASTEST, choices, exact=False, cut_cost=0, spread=False, division=division)


def _estimate_moves_ms(cut: BatchCut, machine: Machine, groups: Sequence[Sequence[int]]) -> list[float]:
    """For every node, about what it takes to move what crosses behind it, of one part, from a stage to the next: each
    site sends its share to the site of the same position, over the slowest link between two stages."""
    rates = [
        min((machine.resources[r].gbs for r in machine.routes[pair]), default=inf)
        for sources, targets in itertools.pairwise(groups)
        for pair in zip(sources, targets, strict=True)
        if pair in machine.routes
    ]
    bytes_per_ms = min(rates, default=inf) * BYTES_PER_MS * len(groups[0]) * cut.parts
    crossing = [*count_crossing_bytes(cut.graph, cut.late), 0]
    return [machine.transfer_latency_us * MS_PER_US + size / bytes_per_ms for size in crossing]


def count_crossing_bytes(graph: Graph, late: Collection[int] = ()) -> list[int]:
    """For every node but the last, the bytes of the tensors that it or nodes before it make, and that nodes after it
    read. Nodes in `late` do not count as readers."""
    table, last = graph.tensor_table(), {}
    for number, node in enumerate(graph.nodes):
        if number not in late:
            last.update(dict.fromkeys(node.inputs, number))
    changes = [0] * (len(graph.nodes) + 1)
    for number, node in enumerate(graph.nodes):
        for name in node.outputs:
            if last.get(name, number) > number:
                desc = table[name].desc
                size = desc.type.size * desc.dtype.itemsize
                changes[number] += size
                changes[last[name]] -= size
    crossing, total = [], 0
    for change in changes[: len(graph.nodes) - 1]:
        total += change
        crossing.append(total)
    return crossing


def cut_stages(times: Sequence[float], moves: Sequence[float], stages: int) -> tuple[int, ...] | None:
    """The stage of every node; `times[n]` is about what node n takes, and `moves[n]` what it takes to move all that
    crosses between it and the next node. None if there are too few nodes.

    The longest stage, with what comes to it, is as short as can be. Of equal choices, the first cuts are the latest.
    """
    count = len(times)
    if stages > count:
        return None
    before = [0.0]
    for time in times:
        before.append(before[-1] + time)
    # longest[i] is the longest of the stages so far, if they have the first i nodes; last[s][i] where the last begins.
    longest = [inf, *before[1:]]
    last: list[list[int]] = []
    for _ in range(1, stages):
        row, begins = [inf] * (count + 1), [0] * (count + 1)
        for end in range(2, count + 1):
            for begin in range(end - 1, 0, -1):
                length = before[end] - before[begin]
                if length > row[end]:
                    break  # a stage that begins earlier is longer still
                most = max(longest[begin], length + moves[begin - 1])
                if most < row[end]:
                    row[end], begins[end] = most, begin
        longest = row
        last.append(begins)
    if longest[count] == inf:
        return None
    stage_of = [0] * count
    end = count
    for stage in range(stages - 1, 0, -1):
        begin = last[stage - 1][end]
        stage_of[begin:end] = [stage] * (end - begin)
        end = begin
    return tuple(stage_of)
