"""Plans that say a few of many equal layers, and the whole plans that they stand for.

Layers may stand in several sections of a sequence: in a training step, the layers of the model follow each other, and
behind them their gradients, from the last layer to the first, and their updates. Some layers are left out: those
between the first `head` and the others. In a section, copies of a layer stand for them: of the last before the gap, in
the order of positions. That layer and the one before it have as many records.

A copy differs from its layer in names and in positions. What a record of a layer refers to in the same layer or in one
next to it, of any section, moves along with the layer; all else stays, where it stands before the copies of its
section, or moves behind them. A copy's buffer is as much further in memory than its layer's as that is than that of the
layer before it.

So such a plan is, without its copies, a valid plan of fewer layers. Its arenas are as large as those of the whole, and
the offsets, `predicted_ms` and `total_cost` are those of the whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import msgspec

from einc_runtime.plan.checks import MAX_COUNTS, require, require_name, require_natural
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

Layer = tuple[int, int]
"""The number of a layer among those that a plan says, and among all."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The layer of a section that copies stand behind: its records, and where the layer before it begins."""

    before: int
    first: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first


def find_copied(section: Section, head: int) -> Copied:
    """The layer of a section that is copied."""
    order = section.layers - 1 - head if section.backwards else head - 1
    return Copied(section.starts[order - 1], section.starts[order], section.starts[order + 1])


class LayerPositions:
    """Where the records of one sequence are in the whole plan."""

    def __init__(self, sections: Sequence[Section], head: int, copies: int) -> None:
        self.sections = sections
        self.copied = [find_copied(section, head) for section in sections]
        self._head, self._copies = head, copies
        self._firsts = [section.starts[0] for section in sections]
        self.shifts = [0, *accumulate(copies * copied.count for copied in self.copied)]  # before each section

    def locate(self, position: int) -> tuple[int, int] | None:
        """The section and the layer that a record belongs to; None for one that belongs to no layer."""
        s = bisect_right(self._firsts, position) - 1
        if s < 0 or position >= self.sections[s].starts[-1]:
            return None
        section = self.sections[s]
        order = bisect_right(section.starts, position) - 1
        return s, section.layers - 1 - order if section.backwards else order

    def refer(self, position: int, layer: Layer | None) -> int:
        """What a position refers to in the whole plan, from a record of a layer, or from one of none."""
        located = self.locate(position)
        if located is None:
            return position + self.shifts[bisect_right(self._firsts, position)]
        s, said = located
        copied = self.copied[s]
        if layer is None or abs(said - layer[0]) > 1:
            behind = position >= copied.first
            return position + self.shifts[s + behind]
        section = self.sections[s]
        number = layer[1] + said - layer[0]
        order, of_copied = number, self._head - 1
        if section.backwards:
            order, of_copied = section.layers + self._copies - 1 - number, section.layers - 1 - self._head
        inside = position - section.starts[section.layers - 1 - said if section.backwards else said]
        if order <= of_copied:
            return section.starts[order] + inside + self.shifts[s]
        if order > of_copied + self._copies:
            return section.starts[order - self._copies] + inside + self.shifts[s + 1]
        require(inside < copied.count, f"position {position}", "it is in a layer with more records than the copied one")
        return copied.first + (order - of_copied) * copied.count + inside + self.shifts[s]

    def walk(self, length: int) -> Iterator[tuple[range, int | None, Layer | None]]:
        """All records in the order of the whole plan, as runs of positions: those of a layer with that layer, a copy's
        with the section, too."""
        end = 0
        for s, section in enumerate(self.sections):
            yield range(end, section.starts[0]), None, None
            for order, (first, end) in enumerate(pairwise(section.starts)):
                said = section.layers - 1 - order if section.backwards else order
                number = said if said < self._head else said + self._copies
                yield range(first, end), None, (said, number)
                if first == self.copied[s].first and end == self.copied[s].end:
                    step = -1 if section.backwards else 1
                    for c in range(1, self._copies + 1):
                        yield range(first, end), s, (said, number + step * c)
        yield range(end, length), None, None


def keep(items: Sequence[Item], sections: Sequence[Section], head: int, copies: int) -> tuple[Item, ...]:
    """The items of a whole plan that a plan has which leaves layers out."""
    kept: list[Item] = []
    end = 0
    for n, section in enumerate(sections):
        copied, left_out = (
            find_copied(section, head),
            sum(copies * find_copied(earlier, head).count for earlier in sections[:n]),
        )
        kept += items[end : copied.end + left_out]
        end = copied.end + left_out + copies * copied.count
    return (*kept, *items[end:])


def repeat(
    items: Sequence[Item], sections: Sequence[Section], head: int, copies: int,
    copy: Callable[[Item, int, int | None, Layer | None], Item],
) -> tuple[Item, ...]:  # fmt: skip
    """The items of the whole plan: `copy(item, position, section, layer)` is one of them, of a copy in that section
    (None: of what a plan says), and of that layer."""
    layout = LayerPositions(sections, head, copies)
    return tuple(
        [copy(items[q], q, section, layer) for positions, section, layer in layout.walk(len(items)) for q in positions]
    )


def check_repetition(bundle: Bundle) -> None:
    """Raises PlanFault, naming the part, where a layer cannot be copied, or if the whole would be too large."""
    repetition = bundle.repetition
    if repetition is None:
        return
    copies = len(repetition.copies)
    require(copies >= 1, "repetition.copies", "there is no copy")
    require(len(repetition.operations) >= 1, "repetition.operations", "there is no section")
    said = repetition.operations[0].layers
    for name, limit in MAX_COUNTS.items():
        length, total, end = len(getattr(bundle, name)), 0, 0
        for s, section in enumerate(getattr(repetition, name)):
            where = f"repetition.{name}[{s}]"
            ascending = all(a <= b for a, b in pairwise((end, *section.starts, length)))
            require(section.layers == said, where, f"it has {section.layers} layers, and others have {said}")
            require(1 < repetition.head < said - section.backwards, where, f"{repetition.head} of {said} layers first")
            require(ascending, where, f"its layers do not follow each other within {length} records")
            end, copied = section.starts[-1], find_copied(section, repetition.head)
            equal = copied.first - copied.before == copied.count
            require(equal, where, "the layer that is copied and the one before it have unlike numbers of records")
            total += copied.count
        require_natural(length + copies * total, limit, f"repetition.{name}, with all copies")
    copied_layers = {
        name: [find_copied(section, repetition.head) for section in getattr(repetition, name)]
        for name in ("tensors", "operations", "tasks")
    }
    counts = {name: sum(layer.count for layer in layers) for name, layers in copied_layers.items()}
    parts = sum(
        len(task.after) + len(reads_of(task)) + len(writes_of(task))
        for layer in copied_layers["tasks"]
        for task in bundle.tasks[layer.first : layer.end]
    )
    require_natural(copies * parts, MAX_COPIED_PARTS, "repetition.tasks, regions and dependencies of all copies")
    for c, names in enumerate(repetition.copies):
        where = f"repetition.copies[{c}]"
        tensors = counts["tensors"]
        require(len(names.tensors) == len(names.stored) == tensors, where, f"not a name for each of {tensors} tensors")
        operations = counts["operations"]
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
    copied = [find_copied(section, repetition.head) for section in repetition.operations]
    return sum(costs) + len(repetition.copies) * sum(sum(costs[layer.first : layer.end]) for layer in copied)


def unfold(bundle: Bundle) -> Bundle:
    """The whole plan. Raises PlanFault where a layer cannot be copied; what the copies refer to is not checked."""
    repetition = bundle.repetition
    if repetition is None:
        return bundle
    check_repetition(bundle)
    return msgspec.structs.replace(LayerCopier(bundle, repetition).copy_all(), repetition=None)


def unfold_statements(bundle: Bundle) -> Bundle:
    """The tensors, operations and outputs of the whole plan, beside the buffers and tasks that the plan says, which
    refer to them. What a copy puts out lies in the buffers of the layer."""
    repetition = bundle.repetition
    if repetition is None:
        return bundle
    copier, head, copies = LayerCopier(bundle, repetition), repetition.head, len(repetition.copies)
    tensors, operations = copier.layouts["tensors"], copier.layouts["operations"]

    def find_layer(name: str, position: int) -> Layer | None:
        """The layer of a record that the plan says."""
        located = copier.layouts[name].locate(position)
        if located is None:
            return None
        return located[1], located[1] + (copies if located[1] >= head else 0)

    def refer(task: AnyTask, position: int) -> AnyTask:
        if not isinstance(task, KernelTask):
            return task
        return msgspec.structs.replace(task, operation=operations.refer(task.operation, find_layer("tasks", position)))

    def copy_output(output: Output, q: int, section: int | None, layer: Layer | None) -> Output:
        return msgspec.structs.replace(output, tensor=tensors.refer(output.tensor, layer))

    return msgspec.structs.replace(
        bundle,
        tensors=copier.repeat("tensors", copier.copy_tensor),
        operations=copier.repeat("operations", copier.copy_operation),
        outputs=copier.repeat("outputs", copy_output),
        buffers=tuple(
            [
                msgspec.structs.replace(buffer, tensor=tensors.refer(buffer.tensor, find_layer("buffers", b)))
                for b, buffer in enumerate(bundle.buffers)
            ]
        ),
        tasks=tuple([refer(task, t) for t, task in enumerate(bundle.tasks)]),
    )


def weigh_tasks(bundle: ExecutablePlan, repetition: Repetition | None) -> Sequence[int]:
    """How many tasks of the whole plan each task stands for."""
    weights = [1] * len(bundle.tasks)
    if repetition is None:
        return weights
    for section in repetition.tasks:
        copied = find_copied(section, repetition.head)
        weights[copied.first : copied.end] = [1 + len(repetition.copies)] * copied.count
    return weights


class LayerCopier:
    """The records of the whole plan, from those of one that leaves layers out.

    Its methods take a record, its position, the section of a copy (None for what the plan says), and the record's
    layer in the whole.
    """

    def __init__(self, bundle: ExecutablePlan, repetition: Repetition) -> None:
        self._bundle, self._repetition = bundle, repetition
        copies = len(repetition.copies)
        self.layouts = {name: LayerPositions(getattr(repetition, name), repetition.head, copies) for name in MAX_COUNTS}
        self._offsets = {
            name: [0, *accumulate(copied.count for copied in self.layouts[name].copied)]
            for name in ("tensors", "operations")
        }
        layer = [
            record.name
            for name in ("tensors", "operations")
            for copied in self.layouts[name].copied
            for record in getattr(bundle, name)[copied.first : copied.end]
        ]
        self._serves: list[Mapping[str, str]] = [
            dict(zip(layer, (*copy.tensors, *copy.operations), strict=True)) for copy in repetition.copies
        ]

    def copy_all(self) -> Bundle:
        """The bundle with all records."""
        assert isinstance(self._bundle, Bundle)
        return msgspec.structs.replace(
            self._bundle,
            tensors=self.repeat("tensors", self.copy_tensor),
            operations=self.repeat("operations", self.copy_operation),
            buffers=self.repeat("buffers", self.copy_buffer),
            tasks=self.repeat("tasks", self.copy_task),
            outputs=self.repeat("outputs", self.copy_output),
        )

    def repeat(self, name: str, copy: Callable[[Item, int, int | None, Layer | None], Item]) -> tuple[Item, ...]:
        """The items of a sequence of the whole plan."""
        repetition = self._repetition
        items: Sequence[Item] = getattr(self._bundle, name)
        return repeat(items, getattr(repetition, name), repetition.head, len(repetition.copies), copy)

    def _find_name(self, name: str, q: int, section: int, layer: Layer) -> tuple[int, int]:
        """The copy of a record, and the number that its name has there."""
        first = self.layouts[name].copied[section].first
        return layer[1] - self._repetition.head, self._offsets[name][section] + q - first

    def copy_tensor(self, tensor: Tensor, q: int, section: int | None, layer: Layer | None) -> Tensor:
        if section is None or layer is None:
            return tensor
        copy, n = self._find_name("tensors", q, section, layer)
        names = self._repetition.copies[copy]
        return msgspec.structs.replace(tensor, name=names.tensors[n], stored=names.stored[n])

    def copy_operation(self, operation: Operation, q: int, section: int | None, layer: Layer | None) -> Operation:
        name, source = operation.name, operation.source
        if section is not None and layer is not None:
            copy, n = self._find_name("operations", q, section, layer)
            names = self._repetition.copies[copy]
            name, source = names.operations[n], names.sources[n]
        refer = self.layouts["tensors"].refer
        inputs, outputs = (
            tuple([refer(tensor, layer) for tensor in tensors]) for tensors in (operation.inputs, operation.outputs)
        )
        return msgspec.structs.replace(operation, name=name, source=source, inputs=inputs, outputs=outputs)

    def copy_buffer(self, buffer: Buffer, q: int, section: int | None, layer: Layer | None) -> Buffer:
        offset, layout = buffer.offset, self.layouts["buffers"]
        if section is not None and layer is not None:
            count, head = layout.copied[section].count, self._repetition.head
            backwards = layout.sections[section].backwards
            further = head + len(self._repetition.copies) - layer[1] if backwards else layer[1] - head + 1
            offset += further * (offset - self._bundle.buffers[q - count].offset)
        tensor = self.layouts["tensors"].refer(buffer.tensor, layer)
        return Buffer(buffer.site, offset, tensor, buffer.block, buffer.role)

    def copy_task(self, task: AnyTask, q: int, section: int | None, layer: Layer | None) -> AnyTask:
        serves = task.serves
        if section is not None and layer is not None:
            serves = self._serves[layer[1] - self._repetition.head].get(serves, serves)
        refer = self.layouts["tasks"].refer
        after = tuple(sorted([refer(before, layer) for before in task.after]))
        if isinstance(task, FenceTask):
            return FenceTask(task.site, serves, after)
        if isinstance(task, TransferTask):
            read, write = self._copy_regions((task.read, task.write), layer)
            return TransferTask(task.site, serves, after, read, write)
        reads, writes = self._copy_regions(task.reads, layer), self._copy_regions(task.writes, layer)
        if isinstance(task, KernelTask):
            operation = self.layouts["operations"].refer(task.operation, layer)
            return KernelTask(task.site, serves, after, operation, task.function, reads, writes)
        if isinstance(task, AggregateTask):
            return AggregateTask(task.site, serves, after, task.aggregation, reads, writes)
        return CopyTask(task.site, serves, after, reads, writes)

    def copy_output(self, output: Output, q: int, section: int | None, layer: Layer | None) -> Output:
        tensor = self.layouts["tensors"].refer(output.tensor, layer)
        return msgspec.structs.replace(output, tensor=tensor, regions=self._copy_regions(output.regions, layer))

    def _copy_regions(self, regions: tuple[Region, ...], layer: Layer | None) -> tuple[Region, ...]:
        refer = self.layouts["buffers"].refer
        return tuple([Region(refer(region.buffer, layer), region.block) for region in regions])
