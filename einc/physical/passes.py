"""The passes of a build behind placing: each makes a state of another one, and neither is changed.

    operators placed -> loads dropped -> memory laid out -> layers repeated -> time predicted

`placer.py` makes the first state, `finish` goes through all of them, and `einc compile --emit=device` prints the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from einc.machines.model import Machine
from einc.physical.few_layers import FewLayers
from einc.physical.memory import BuiltLayers, MemoryPlan, check_capacity, plan_memory
from einc.physical.program import DeviceProgram, renumber_buffers, renumber_regions
from einc.predict.repeated import predict_whole
from einc.predict.timeline import predict
from einc_runtime.plan.launches import JointLaunch, find_joint_tasks
from einc_runtime.plan.peer_sums import find_peer_sums
from einc_runtime.plan.regions import writes_of


@dataclass(frozen=True, slots=True)
class BuildState:
    """A program under construction for a machine, and what passes know of it beside the records of the plan file.

    Its buffers have the offset 0 until memory is laid out. `aliases` has the buffers that are written over another one,
    and that one, and `redundant` loaded ones whose blocks lie in another one, and that one. `starts` has the first task
    and buffer of each node, and those behind the last. With a `few` layers in place of many, memory and time become
    those of the whole.
    """

    program: DeviceProgram
    machine: Machine
    aliases: Mapping[int, int] = field(default_factory=dict)
    redundant: Mapping[int, int] = field(default_factory=dict)
    starts: tuple[tuple[int, int], ...] = ()
    few: FewLayers | None = None
    memory: MemoryPlan | None = None

    @property
    def layers(self) -> BuiltLayers | None:
        """Where the layers are of which a few were built."""
        if self.few is None:
            return None
        tasks, buffers = (self.few.find_sections(starts) for starts in zip(*self.starts, strict=True))
        return BuiltLayers(tasks, buffers, self.few.head, self.few.left_out)


def finish(placed: BuildState, *, check_memory: bool = True, known_ms: float | None = None) -> DeviceProgram:
    """The program of what has been placed; `known_ms` is the time that it takes, where that is known.

    Raises CapacityError where memory does not suffice, with `check_memory`, and LayersDiffer where no layer stands for
    those that were left out.
    """
    state = lay_out_memory(drop_loads(placed))
    if check_memory:
        require_memory(state)
    state = repeat_layers(state)
    return predict_time(state).program if known_ms is None else replace(state.program, predicted_ms=known_ms)


def drop_loads(state: BuildState) -> BuildState:
    """Reads what lies in two loaded buffers of a site out of the larger one alone."""
    if not state.redundant:
        return state
    program = state.program
    kept = [b for b in range(len(program.buffers)) if b not in state.redundant]
    number = {b: i for i, b in enumerate(kept)}
    number.update([(b, number[larger]) for b, larger in state.redundant.items()])
    outputs = [
        msgspec.structs.replace(output, regions=renumber_regions(output.regions, number)) for output in program.outputs
    ]
    dropped = replace(
        program,
        buffers=tuple([program.buffers[b] for b in kept]),
        tasks=tuple([renumber_buffers(task, number) for task in program.tasks]),
        outputs=tuple(outputs),
    )
    return replace(
        state,
        program=dropped,
        aliases={number[new]: number[old] for new, old in state.aliases.items()},
        redundant={},
        starts=tuple((task, bisect_left(kept, buffer)) for task, buffer in state.starts),
    )


def lay_out_memory(state: BuildState) -> BuildState:
    """Gives each buffer its bytes, with room for what GPUs may compute together unless a site has too little memory."""
    program, layers = state.program, state.layers
    joined, launches = find_joint_tasks(program, program.tasks)
    begins = _find_gathered(program, launches) if state.machine.joins_launches else {}
    arguments = program.tensors, program.buffers, program.tasks, program.plan.sites
    memory = plan_memory(*arguments, joined, state.aliases, layers, begins)
    sites = zip(memory.sizes, state.machine.sites, strict=False)
    if (joined or begins) and any(needed > site.memory_bytes for needed, site in sites):
        memory = plan_memory(*arguments, {}, state.aliases, layers)
    laid_out = replace(program, buffers=memory.buffers, tasks=memory.tasks, memory=memory.sizes)
    return replace(state, program=laid_out, memory=memory)


def _find_gathered(program: DeviceProgram, launches: Sequence[JointLaunch]) -> dict[int, int]:
    """The buffers that GPUs may write when they begin a sum of what all of them have, and the first task of the sum."""
    sums = find_peer_sums(program, program.tasks, launches, laid_out=False)
    return {
        region.buffer: peer_sum.first
        for peer_sum in sums
        for gather in peer_sum.gathers
        for region in writes_of(program.tasks[gather])
    }


def require_memory(state: BuildState) -> None:
    """Raises CapacityError where a site has less memory than was laid out."""
    assert state.memory is not None
    check_capacity(state.program.plan, state.machine, state.program.tensors, state.memory)


def repeat_layers(state: BuildState) -> BuildState:
    """Lets a layer stand for those that were left out. Raises LayersDiffer where none can."""
    few, layers, memory = state.few, state.layers, state.memory
    if few is None or layers is None or memory is None or not few.left_out:
        return state
    repetition = few.repeat(state.program, layers, memory, state.aliases)
    return replace(state, program=replace(state.program, repetition=repetition))


def predict_time(state: BuildState) -> BuildState:
    """Simulates the program on its machine."""
    timed = predict(state.program, state.machine)
    whole_ms = predict_whole(state.program, timed)
    return replace(state, program=replace(state.program, predicted_ms=whole_ms, timed=timed))
