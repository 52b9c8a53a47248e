"""The passes behind placing, one by one, from the state that placing leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc.errors import CapacityError
from einc.machines.model import Machine
from einc.physical.build import build
from einc.physical.passes import BuildState, drop_loads, finish, lay_out_memory, predict_time, require_memory
from einc.physical.placer import Placer, PlanRecords
from einc.physical.schedule import NaiveScheduler
from tests.support.physical_toys import Formula, graph_of, plan_of, switch

COPY = Formula(("i",), (("i", "sum"),), (("i", 1024),))
PLAN = plan_of(graph_of([("whole", COPY, ("x",)), ("halves", COPY, ("x",))], ["whole", "halves"]), 2,
               {"whole": (1,), "halves": (2,)})  # fmt: skip


def place(machine: Machine) -> BuildState:
    """A site has all of the input for the first operator, and half of it for the second one."""
    placer = Placer(PLAN, machine, NaiveScheduler(machine, 2), PlanRecords.of(PLAN))
    for node in range(2):
        placer.place(node)
    return placer.collect()


def test_each_pass_makes_a_state_of_another_one() -> None:
    placed = place(switch(2))
    before = replace(placed)
    assert len(placed.redundant) == 1
    dropped = drop_loads(placed)
    assert len(dropped.program.buffers) == len(placed.program.buffers) - 1
    assert not dropped.redundant
    laid_out = lay_out_memory(dropped)
    assert not any(dropped.program.memory)
    assert laid_out.program.memory == (2 * 8_192 + 4_096, 2 * 4_096)
    timed = predict_time(laid_out)
    assert laid_out.program.predicted_ms == 0 < timed.program.predicted_ms
    assert placed == before
    assert finish(placed) == timed.program == build(PLAN, switch(2))


def test_memory_is_required_by_a_pass_of_its_own() -> None:
    machine = switch(2)
    small = replace(machine, sites=tuple(replace(site, memory_bytes=9_000) for site in machine.sites))
    state = lay_out_memory(drop_loads(place(small)))
    with pytest.raises(CapacityError):
        require_memory(state)
    assert finish(place(small), check_memory=False).memory == state.program.memory
