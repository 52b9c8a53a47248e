"""Plans for tests of the proof: single changes of a plan, and plans of very many parts."""

from __future__ import annotations

import random
import re

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import ITEMSIZE, Buffer, CopyTask, FenceTask, Region, TransferTask
from tests.support.handmade_plans import Planner, box


def with_task(plan, position, **fields):
    tasks = list(plan.tasks)
    tasks[position] = msgspec.structs.replace(tasks[position], **fields)
    return msgspec.structs.replace(plan, tasks=tuple(tasks))


def with_buffer(plan, position, **fields):
    buffers = list(plan.buffers)
    buffers[position] = msgspec.structs.replace(buffers[position], **fields)
    return msgspec.structs.replace(plan, buffers=tuple(buffers))


def appended(plan, *tasks):
    return msgspec.structs.replace(plan, tasks=(*plan.tasks, *tasks))


def fault_of(plan):
    with pytest.raises(PlanFault) as caught:
        prove(plan)
    return caught.value.render()


def gathered(rows):
    """Row by row, the result of a relu goes into one scratch buffer, which then is copied whole into another.

    Then all of that again: into buffers with the same bytes, behind a fence. Returns the plan, and where the rows that
    come after the fence begin.
    """
    planner = Planner(1, random.Random(0))
    x = planner.tensor("x", (2, rows), "input", ("i", "j"))
    y = planner.tensor("y", (2, rows), "value", ("i", "j"))
    attributes = {"program": "t0 = relu x0", "indices": "i j -> i j"}
    planner.operation("y", "map", attributes, {"i": 2, "j": rows}, {"i": 1, "j": 1}, [x], ["ij"], y, "ij")
    planner.save(y)
    plan = planner.bundle()
    result, full_block = plan.tasks[0].writes[0], plan.tasks[0].writes[0].block
    size = 2 * rows * ITEMSIZE[plan.tensors[y].dtype]
    offset = (max(plan.memory) + 7) // 8 * 8
    b = len(plan.buffers)
    buffers = tuple(Buffer(0, offset + k % 2 * size, y, full_block, "scratch") for k in range(4))
    tasks = list(plan.tasks)
    for first in (b, b + 2):
        begin = len(tasks)
        for row in range(rows):
            part = box((0, 2), (row, row + 1))
            tasks.append(CopyTask(0, "y", (begin - 1,), (Region(result.buffer, part),), (Region(first, part),)))
        parts = tuple(range(begin, begin + rows))
        tasks.append(CopyTask(0, "y", parts, (Region(first, full_block),), (Region(first + 1, full_block),)))
        tasks.append(FenceTask(0, "y", (len(tasks) - 1,)))
    fields = {"buffers": plan.buffers + buffers, "tasks": tuple(tasks), "memory": (offset + 2 * size,)}
    return msgspec.structs.replace(plan, **fields), begin


def long_plan(tasks):
    """One relu on two sites, whose result is handed to and fro between two scratch buffers."""
    planner = Planner(2, random.Random(0))
    x = planner.tensor("x", (2, 2), "input", ("i", "j"))
    y = planner.tensor("y", (2, 2), "value", ("i", "j"))
    attributes = {"program": "t0 = relu x0", "indices": "i j -> i j"}
    planner.operation("y", "map", attributes, {"i": 2, "j": 2}, {"i": 2, "j": 1}, [x], ["ij"], y, "ij")
    planner.save(y)
    plan = planner.bundle()
    home = plan.tasks[0].site
    block = plan.tasks[0].writes[0].block
    offset = (max(plan.memory) + 7) // 8 * 8
    buffers = (Buffer(0, offset, y, block, "scratch"), Buffer(1, offset, y, block, "scratch"))
    region_of_site = {site: Region(len(plan.buffers) + site, block) for site in (0, 1)}
    start = len(plan.tasks)
    moves = [CopyTask(home, "y", (0,), plan.tasks[0].writes, (region_of_site[home],))]
    for k in range(tasks):
        site = home if k % 2 == 0 else 1 - home
        moves.append(TransferTask(site, "y", (start + k,), region_of_site[site], region_of_site[1 - site]))
    memory = (offset + 64, offset + 64)
    return msgspec.structs.replace(plan, buffers=plan.buffers + buffers, tasks=plan.tasks + tuple(moves), memory=memory)


def changed(part, path, value):
    """`part` with the field at `path` (names and positions) replaced; a callable gets the old value."""
    if not path:
        return value(part) if callable(value) else value
    step, *remaining = path
    if isinstance(step, int):
        return (*part[:step], changed(part[step], remaining, value), *part[step + 1 :])
    if isinstance(part, dict):
        return {**part, step: changed(part.get(step), remaining, value)}
    return msgspec.structs.replace(part, **{step: changed(getattr(part, step), remaining, value)})


def parse(path):
    return [int(step) if step.isdigit() else step for step in re.findall(r"\w+", path)]
