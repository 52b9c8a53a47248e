"""Plans that say a layer once, and the whole plans that they stand for.

A plan of many equal layers has one of them, with the names of its copies (`Repetition`). Every copy follows the layer,
in each sequence of the plan. A copy differs from the layer before it in names and in positions: those that lie in the
layer or in the one before it, which is of the same size, move by the size of a layer, and all others stay. Where a
tensor's buffers are in memory moves by `growth`, but for scratch, whose bytes all layers share. What comes behind the
layer stands behind the last copy, and refers to that one.

So a plan with a repetition is, without its copies, a valid plan of fewer layers. Its arenas are as large as those of
the whole, and the offsets, `predicted_ms` and `total_cost` are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from einc_runtime.plan.checks import MAX_COUNTS, require, require_name, require_natural, require_position
from einc_runtime.plan.record import Repetition, Section
from einc_runtime.plan.regions import ExecutablePlan, reads_of, writes_of
from einc_runtime.plan.schema import (
    AggregateTask,
    AnyTask,
    Buffer,
    Bundle,
    CopyTask,
    FenceTask,
    KernelTask,
    Operation,
    Output,
    Region,
    Tensor,
    TransferTask,
)

MAX_COPIED_PARTS = 1 << 26
"""Regions and dependencies of tasks in all copies: a limit of memory, of which they take some 4 GiB."""

Item = TypeVar("Item")


def keep(items: Sequence[Item], section: Section, copies: int) -> tuple[Item, ...]:
    """The items of a whole plan that a plan has which says a layer once."""
    return (*items[: section.end], *items[section.end + section.count * copies :])


def repeat(
    items: Sequence[Item], section: Section, copies: int, copy: Callable[[Item, int, int], Item]
) -> tuple[Item, ...]:
    """The items of the whole plan. `copy(item, c, n)` is an item in copy c, or behind all of them where n, its number
    in the section, is not below the size of that."""
    behind = enumerate(items[section.end :], section.count)
    return (
        *items[: section.end],
        *[copy(item, c, n) for c in range(1, copies + 1) for n, item in enumerate(items[section.first : section.end])],
        *[copy(item, copies, n) for n, item in behind],
    )


def check_repetition(bundle: Bundle) -> None:
    """Raises PlanFault, naming the part, where a layer cannot be copied, or if the whole would be too large."""
    repetition = bundle.repetition
    if repetition is None:
        return
    copies = len(repetition.copies)
    require(copies >= 1, "repetition.copies", "there is no copy")
    for name, limit in MAX_COUNTS.items():
        section, where, length = getattr(repetition, name), f"repetition.{name}", len(getattr(bundle, name))
        inside = 0 <= section.count <= section.first and section.end <= length
        require(inside, where, f"{section.count} of {length} from {section.first} on, and as many before")
        require_natural(length + copies * section.count, limit, f"{where}, with all copies")
    layer = bundle.tasks[repetition.tasks.first : repetition.tasks.end]
    parts = sum(len(task.after) + len(reads_of(task)) + len(writes_of(task)) for task in layer)
    require_natural(copies * parts, MAX_COPIED_PARTS, "repetition.tasks, regions and dependencies of all copies")
    require(len(repetition.growth) == len(bundle.memory), "repetition.growth", "it is not one number for each site")
    for number in range(repetition.buffers.first, repetition.buffers.end):
        require_position(bundle.buffers[number].site, len(bundle.memory), "site", f"buffers[{number}].site")
    for c, names in enumerate(repetition.copies):
        where = f"repetition.copies[{c}]"
        tensors = repetition.tensors.count
        require(len(names.tensors) == len(names.stored) == tensors, where, f"not a name for each of {tensors} tensors")
        operations = repetition.operations.count
        equal = len(names.operations) == len(names.sources) == operations
        require(equal, where, f"not a name for each of {operations} operations")
        optional = [name for name in (*names.stored, *names.sources) if name is not None]
        for name in (*names.tensors, *names.operations, *optional):
            require_name(name, where)


def sum_costs(bundle: Bundle) -> int:
    """What all operations of the whole plan cost, in elements."""
    costs = [cost.repartition + cost.join + cost.aggregation for cost in (o.cost for o in bundle.operations)]
    repetition = bundle.repetition
    if repetition is None:
        return sum(costs)
    return sum(costs) + len(repetition.copies) * sum(costs[repetition.operations.first : repetition.operations.end])


def unfold(bundle: Bundle) -> Bundle:
    """The whole plan. Raises PlanFault where a layer cannot be copied; what the copies refer to is not checked."""
    repetition = bundle.repetition
    if repetition is None:
        return bundle
    check_repetition(bundle)
    copier, copies = LayerCopier(bundle, repetition), len(repetition.copies)
    return msgspec.structs.replace(
        bundle,
        tensors=repeat(bundle.tensors, repetition.tensors, copies, copier.copy_tensor),
        operations=repeat(bundle.operations, repetition.operations, copies, copier.copy_operation),
        buffers=repeat(bundle.buffers, repetition.buffers, copies, copier.copy_buffer),
        tasks=repeat(bundle.tasks, repetition.tasks, copies, copier.copy_task),
        outputs=repeat(bundle.outputs, repetition.outputs, copies, copier.copy_output),
        repetition=None,
    )


def unfold_statements(bundle: Bundle) -> Bundle:
    """The tensors, operations and outputs of the whole plan, beside the buffers and tasks that the plan says, which
    refer to them. What a copy puts out lies in the buffers of the layer."""
    repetition = bundle.repetition
    if repetition is None:
        return bundle
    copier, copies = LayerCopier(bundle, repetition), len(repetition.copies)
    tensors, operations = repetition.tensors, repetition.operations

    def refer(task: AnyTask) -> AnyTask:
        if not isinstance(task, KernelTask) or task.operation < operations.end:
            return task
        return msgspec.structs.replace(task, operation=_move(task.operation, operations, copies))

    def copy_output(output: Output, c: int, n: int) -> Output:
        return msgspec.structs.replace(output, tensor=_move(output.tensor, tensors, c))

    return msgspec.structs.replace(
        bundle,
        tensors=repeat(bundle.tensors, tensors, copies, copier.copy_tensor),
        operations=repeat(bundle.operations, operations, copies, copier.copy_operation),
        outputs=repeat(bundle.outputs, repetition.outputs, copies, copy_output),
        buffers=tuple(
            [
                buffer if buffer.tensor < tensors.end
                else msgspec.structs.replace(buffer, tensor=_move(buffer.tensor, tensors, copies))
                for buffer in bundle.buffers
            ]
        ),
        tasks=tuple(map(refer, bundle.tasks)),
    )  # fmt: skip


def weigh_tasks(bundle: ExecutablePlan, repetition: Repetition | None) -> Sequence[int]:
    """How many tasks of the whole plan each task stands for."""
    weights = [1] * len(bundle.tasks)
    if repetition is not None:
        section = repetition.tasks
        weights[section.first : section.end] = [1 + len(repetition.copies)] * section.count
    return weights


class LayerCopier:
    """Copies of what belongs to a layer, and of what stands behind it.

    Its methods take an item of a sequence, the number of a copy, and the item's number in the layer's section of that
    sequence; what stands behind has a higher number, and is moved as if it belonged to the last copy.
    """

    def __init__(self, bundle: ExecutablePlan, repetition: Repetition) -> None:
        self._repetition = repetition
        tensors, operations = repetition.tensors, repetition.operations
        names = [tensor.name for tensor in bundle.tensors[tensors.first : tensors.end]]
        names += [operation.name for operation in bundle.operations[operations.first : operations.end]]
        self._serves: list[Mapping[str, str]] = [
            dict(zip(names, (*copy.tensors, *copy.operations), strict=True)) for copy in repetition.copies
        ]

    def copy_tensor(self, tensor: Tensor, c: int, n: int) -> Tensor:
        if n >= self._repetition.tensors.count:
            return tensor
        names = self._repetition.copies[c - 1]
        return msgspec.structs.replace(tensor, name=names.tensors[n], stored=names.stored[n])

    def copy_operation(self, operation: Operation, c: int, n: int) -> Operation:
        name, source = operation.name, operation.source
        if n < self._repetition.operations.count:
            names = self._repetition.copies[c - 1]
            name, source = names.operations[n], names.sources[n]
        inputs, outputs = (
            tuple([_move(tensor, self._repetition.tensors, c) for tensor in tensors])
            for tensors in (operation.inputs, operation.outputs)
        )
        return msgspec.structs.replace(operation, name=name, source=source, inputs=inputs, outputs=outputs)

    def copy_buffer(self, buffer: Buffer, c: int, n: int) -> Buffer:
        tensor = _move(buffer.tensor, self._repetition.tensors, c)
        grows = buffer.role != "scratch" and n < self._repetition.buffers.count
        offset = buffer.offset + (c * self._repetition.growth[buffer.site] if grows else 0)
        return Buffer(buffer.site, offset, tensor, buffer.block, buffer.role)

    def copy_task(self, task: AnyTask, c: int, n: int) -> AnyTask:
        section = self._repetition.tasks
        serves = self._serves[c - 1].get(task.serves, task.serves) if n < section.count else task.serves
        since, shift = section.first - section.count, c * section.count
        after = tuple([before + shift if before >= since else before for before in task.after])
        if isinstance(task, FenceTask):
            return FenceTask(task.site, serves, after)
        if isinstance(task, TransferTask):
            read, write = self._copy_regions((task.read, task.write), c)
            return TransferTask(task.site, serves, after, read, write)
        reads, writes = self._copy_regions(task.reads, c), self._copy_regions(task.writes, c)
        if isinstance(task, KernelTask):
            operation = _move(task.operation, self._repetition.operations, c)
            return KernelTask(task.site, serves, after, operation, task.function, reads, writes)
        if isinstance(task, AggregateTask):
            return AggregateTask(task.site, serves, after, task.aggregation, reads, writes)
        return CopyTask(task.site, serves, after, reads, writes)

    def copy_output(self, output: Output, c: int, n: int) -> Output:
        tensor = _move(output.tensor, self._repetition.tensors, c)
        return msgspec.structs.replace(output, tensor=tensor, regions=self._copy_regions(output.regions, c))

    def _copy_regions(self, regions: tuple[Region, ...], c: int) -> tuple[Region, ...]:
        section = self._repetition.buffers
        since, shift = section.first - section.count, c * section.count
        return tuple(
            [Region(region.buffer + shift, region.block) if region.buffer >= since else region for region in regions]
        )


def _move(position: int, section: Section, c: int) -> int:
    """What a position refers to from copy c."""
    return position + c * section.count if position >= section.first - section.count else position
