"""An interpreter of device programs that shares no code with the compiler beyond the data classes: every run executes
the tasks in another order that `after` allows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from einc.core.tensor import DType
from einc.graph.graph import Node
from einc.physical.program import DeviceProgram
from einc_runtime.plan.regions import reads_of, span, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, CopyTask, KernelTask, TransferTask
from tests.support.block_slices import slices
from tests.support.joint_aggregation_meaning import combine
from tests.support.physical_toys import UFUNC


def interpret(program: DeviceProgram, inputs: Mapping[str, Any], seed: int, rounds: int = 1) -> dict[str, Any]:
    """The saved outputs, after running all tasks `rounds` times, each time in another random order."""
    rng, noise = random.Random(seed), np.random.default_rng(seed)
    arenas = [noise.integers(0, 256, size, dtype=np.uint8) for size in program.memory]
    views = []
    for number, buffer in enumerate(program.buffers):
        tensor = program.tensors[buffer.tensor]
        raw = arenas[buffer.site][slice(*span(program, number))]
        views.append(raw.view(DType(tensor.dtype).numpy()).reshape(buffer.block.shape))
        if buffer.role in ("input", "weight"):
            views[-1][...] = inputs[tensor.name][slices(buffer.block)]

    def at(region: Any) -> Any:
        within = slices(region.block, program.buffers[region.buffer].block.lower)
        return views[region.buffer][(*within, ...)]  # a view, of rank 0 too

    nodes = {node.name: node for node in program.plan.graph.nodes}
    producers = program.plan.graph.producers()

    def dims_of(task: AggregateTask) -> Sequence[Sequence[int]]:
        node, j = producers[program.tensors[program.buffers[task.writes[0].buffer].tensor].name]
        return next(joint.dims for joint in node.operator.joint_aggregations if j in joint.outputs)

    for _ in range(rounds):
        for task in _some_order(program.tasks, rng):
            _execute(task, nodes, at, dims_of)
    outputs = {}
    for output in program.outputs:
        name = program.tensors[output.tensor].name
        desc = program.plan.graph.tensor_table()[name].desc
        outputs[name] = np.zeros(desc.shape, desc.dtype.numpy())
        filled = np.zeros(desc.shape, int)
        for region in output.regions:
            outputs[name][(*slices(region.block), ...)] = at(region)
            filled[(*slices(region.block), ...)] += 1
        assert (filled == 1).all()
    return outputs


def _some_order(tasks: Sequence[AnyTask], rng: random.Random) -> Iterator[AnyTask]:
    open_waits = [len(task.after) for task in tasks]
    waiters: list[list[int]] = [[] for _ in tasks]
    for position, task in enumerate(tasks):
        for before in task.after:
            waiters[before].append(position)
    ready = [position for position, count in enumerate(open_waits) if not count]
    late = rng.random() < 0.5  # prefer tasks far down the program in half of the runs
    done = 0
    while ready:
        ready.sort()
        pick = ready.pop(-1 if late and rng.random() < 0.8 else rng.randrange(len(ready)))
        done += 1
        yield tasks[pick]
        for waiter in waiters[pick]:
            open_waits[waiter] -= 1
            if not open_waits[waiter]:
                ready.append(waiter)
    assert done == len(tasks)


def _execute(
    task: AnyTask,
    nodes: Mapping[str, Node],
    at: Callable[[Any], Any],
    dims_of: Callable[[AggregateTask], Sequence[Sequence[int]]],
) -> None:
    with np.errstate(over="ignore"):
        if isinstance(task, KernelTask):
            results = nodes[task.serves].operator.reference(*(at(region).copy() for region in task.reads))
            for region, result in zip(task.writes, results, strict=True):
                at(region)[...] = result
        elif isinstance(task, AggregateTask) and len(task.writes) == 1:
            total = at(task.reads[0]).copy()
            for region in task.reads[1:]:
                total = UFUNC[task.aggregation](total, at(region))
            at(task.writes[0])[...] = total
        elif isinstance(task, AggregateTask):
            members = len(task.writes)
            copies = [
                [at(region) for region in task.reads[n : n + members]] for n in range(0, len(task.reads), members)
            ]
            merged: Sequence[Any] = copies[0]
            for copy in copies[1:]:
                merged = combine(task.aggregation, dims_of(task), merged, copy)
            for region, value in zip(task.writes, merged, strict=True):
                at(region)[...] = value
        elif isinstance(task, TransferTask | CopyTask):
            values = [at(region).copy() for region in reads_of(task)]
            for region, value in zip(writes_of(task), values, strict=True):
                at(region)[...] = value
