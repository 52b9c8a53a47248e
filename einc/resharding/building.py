"""The plan of a resharding: it loads the blocks of one plan, moves them, and its outputs are those of the other.

It has no operations. Every tensor is a weight, which is loaded where the first plan has it, and an output, whose
regions are the blocks of the second plan, each at its site. One exchange per tensor brings what is not there already.
"""

from __future__ import annotations

import msgspec

from einc.core.tensor import DType, TensorDesc
from einc.graph.graph import Graph, GraphTensor, TensorKind
from einc.logical.plan import LogicalPlan
from einc.options import FASTEST
from einc.physical.atoms import find_inflows
from einc.physical.budget import SearchBudget
from einc.physical.lowering import Lowering
from einc.physical.passes import BuildState, finish
from einc.physical.program import DeviceProgram, DeviceProgramBuilder
from einc.physical.records import emit, require_valid
from einc.physical.residency import CompleteBlock, Residency
from einc.physical.schedule import NaiveScheduler
from einc.physical.synthesis import Report, SearchScope, SynthesizingScheduler, ignore_report
from einc.physical.verify import verify
from einc.resharding.layouts import Relocation, Resharding
from einc_runtime.plan.joint_aggregation import AggregationGroup
from einc_runtime.plan.schema import Bundle, Output

Bring = NaiveScheduler | SynthesizingScheduler


def build_resharding(
    resharding: Resharding,
    *,
    schedule: str = "synthesized",
    budget: SearchBudget | None = None,
    seed: int = 0,
    report: Report = ignore_report,
) -> Bundle:
    """The plan that moves everything, with naive or synthesized exchanges.

    All exchanges begin at once, or each begins when the one before has ended, whichever is predicted to be faster: at
    once, they fill links that one of them leaves idle; in turn, none keeps the first steps of another waiting. Raises
    MachineError where sites that must exchange data cannot talk, and CapacityError where the blocks of both plans do
    not fit into the memory of a site together.
    """
    machine, sites = resharding.machine, len(resharding.devices)
    budget = budget or SearchBudget()
    scheduler: Bring
    if schedule == "naive":
        scheduler = NaiveScheduler(machine, sites)
    else:
        scheduler = SynthesizingScheduler(machine, sites, budget=budget, seed=seed, report=report, placed=True)
        scheduler.restart(SearchScope.BODY, len(resharding.relocations))
    budget.begin()
    programs = [_build(resharding, scheduler, in_turn) for in_turn in (False, True)]
    budget.end()
    program = min(programs, key=lambda candidate: candidate.predicted_ms)
    verify(program)
    return require_valid(emit(program, machine, resharding.devices, schedule))


def _build(resharding: Resharding, scheduler: Bring, in_turn: bool) -> DeviceProgram:
    machine, sites = resharding.machine, len(resharding.devices)
    plan = _make_logical_plan(resharding)
    builder = DeviceProgramBuilder([relocation.tensor for relocation in resharding.relocations])
    outputs: list[Output] = []
    waited = 0  # the tasks up to here have ended when an exchange begins
    for number, relocation in enumerate(resharding.relocations):
        if in_turn and waited < len(builder.tasks):
            waited = _add_fence(builder, waited)
        first = len(builder.tasks)
        outputs.append(_move(builder, number, relocation, resharding, scheduler))
        if in_turn and waited:
            _begin_after(builder, first, waited - 1)
    program = DeviceProgram(
        plan,
        tuple(builder.tensors),
        (),
        tuple(builder.buffers),
        tuple(builder.tasks),
        tuple(outputs),
        (0,) * sites,
        0.0,
    )
    return finish(BuildState(program, machine))


def _add_fence(builder: DeviceProgramBuilder, first: int) -> int:
    """Adds a fence that ends with the last of the tasks from position `first` on, and returns their number."""
    awaited = {position for task in builder.tasks[first:] for position in task.after}
    builder.add_fence(0, [position for position in range(first, len(builder.tasks)) if position not in awaited])
    return len(builder.tasks)


def _begin_after(builder: DeviceProgramBuilder, first: int, fence: int) -> None:
    """Lets those of the tasks from position `first` on that wait for nothing wait for a fence."""
    for position, task in enumerate(builder.tasks[first:], first):
        if not task.after:
            builder.tasks[position] = msgspec.structs.replace(task, after=(fence,))


def _move(
    builder: DeviceProgramBuilder, number: int, relocation: Relocation, resharding: Resharding, scheduler: Bring
) -> Output:
    """Loads the blocks of one tensor, brings them where they must be, and keeps them there."""
    builder.serves = relocation.tensor.name
    group = AggregationGroup.single("sum", number, len(relocation.tensor.shape))
    residency = Residency(number, relocation.tensor, group, {})
    for site, blocks in enumerate(relocation.before):
        for block in blocks:
            residency.add(CompleteBlock(site, builder.load(site, number, block), ()))
    placement = tuple(site for site, blocks in enumerate(relocation.after) if blocks)
    required = [relocation.after[site] for site in placement]
    reads, inflows = find_inflows({number: required}, {number: residency})
    scheduled = scheduler.bring(f"'{relocation.tensor.name}'", inflows, placement)
    lowering = Lowering(builder, reads, inflows, placement)
    if scheduled.preamble is not None:
        lowering.run(scheduled.firings, scheduled.preamble.atoms, resharding.machine)
    lowering.finish()
    regions = tuple(
        lowering.operand(0, site, block)[0]
        for site, blocks in zip(placement, required, strict=True)
        for block in blocks
    )
    for region in regions:
        builder.keep(region.buffer)
    return Output(number, regions, scheduled.exchange)


def _make_logical_plan(resharding: Resharding) -> LogicalPlan:
    """A plan of no operators, whose outputs are its weights."""
    tensors = tuple(
        GraphTensor(
            moved.name, TensorDesc(moved.dims, moved.shape, DType(moved.dtype)), TensorKind.WEIGHT, moved.stored
        )
        for moved in (relocation.tensor for relocation in resharding.relocations)
    )
    graph = Graph(resharding.model, tensors, (), tuple(tensor.name for tensor in tensors))
    return LogicalPlan(graph, len(resharding.devices), FASTEST, (), False, 0)
