"""Programs of a few layers that stand for many.

A plan of many equal layers is built with a few of them. In the middle of these, one layer is like the one before it,
but for names and positions: then copies of it follow in the plan (`einc_runtime.plan.repetition`), as many as were left
out. The first layers differ, as they find other things in memory, and so may the last one. Of a training step, that
holds for each run of layers: those of the model, their gradients, and their updates.

That a copy is right needs no look at it: what two neighbouring layers may do to each other, the layer and the one
before it show, and what lies further back is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from einc.graph.layers import MIN_FOLDED, Folded, LayerRun, fold, fold_step
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.machines.site_counts import MANY_SITES
from einc.physical.memory import BuiltLayers, MemoryPlan
from einc.physical.program import DeviceProgram
from einc.physical.records import format_source, make_tensor_records
from einc_runtime.plan.record import CopyNames, Repetition, Section
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.repetition import LayerCopier, LayerPositions, find_copied
from einc_runtime.plan.schema import Tensor

Item = TypeVar("Item")

BUILT_LAYERS = 6
"""Layers that are built. The first two find memory that others have used, and the third and fourth were the first to be
alike in all models tried; the fifth may be joined with the last in launches."""


class LayersDiffer(Exception):
    """No layer of a program can stand for those that were left out."""


@dataclass(frozen=True, slots=True)
class FewLayers:
    """The plan of a few layers of `full_plan`, of which `runs` are the layers; behind the first `head`, `left_out` more
    follow."""

    full_plan: LogicalPlan
    plan: LogicalPlan
    runs: tuple[LayerRun, ...]
    head: int
    left_out: int

    @classmethod
    def of(cls, plan: LogicalPlan, machine: Machine) -> FewLayers | None:
        """None where there are no more layers, or where they are not cut alike.

        Nor where sites share cores, as what runs first there depends on all that comes after.
        """
        nodes = plan.graph.nodes
        if machine.cores is not None or plan.division is not None or len(nodes) < MIN_FOLDED:
            return None
        folded = fold(plan.graph, BUILT_LAYERS)
        if folded is None and plan.sites > MANY_SITES:  # on fewer it takes seconds, and a whole step less memory
            folded = fold_step(plan.graph)
        return None if folded is None or not _are_cut_alike(plan, folded) else cls.keep(plan, folded)

    @classmethod
    def keep(cls, plan: LogicalPlan, folded: Folded) -> FewLayers:
        """The plan of the nodes that a folded graph keeps."""
        few = replace(plan, graph=folded.graph, choices=tuple([plan.choices[n] for n in folded.kept]))
        return cls(plan, few, folded.runs, folded.head, folded.left_out)

    def find_sections(self, starts: Sequence[int]) -> tuple[Section, ...]:
        """Where layers begin in a sequence, from where its nodes begin, and the last one ends."""
        return tuple(
            Section(tuple([starts[n] for n in range(run.first, run.end + 1, run.length)]), run.backwards)
            for run in self.runs
        )

    def repeat(
        self, program: DeviceProgram, layers: BuiltLayers, memory: MemoryPlan, aliases: Mapping[int, int]
    ) -> Repetition:
        """What the whole has in addition to a program of the few layers; `aliases` has the buffers that are written
        over others.

        Raises LayersDiffer unless the program with the copies is one of the whole plan.
        """
        graph, copies = self.full_plan.graph, self.left_out
        tensors = make_tensor_records(graph)
        layer_of = self._find_layers_of_tensors()
        said_tensors = [layer_of.get(tensor.name) for tensor in program.tensors]
        repetition = Repetition(
            self.head,
            _find_sections(said_tensors, self.runs[0].count),
            self.find_sections(range(len(program.operations) + 1)),
            layers.buffers,
            memory.layers,
            _find_sections([said_tensors[output.tensor] for output in program.outputs], self.runs[0].count),
            (),
        )
        for sections in (repetition.tensors, repetition.operations, repetition.buffers, repetition.tasks,
                         repetition.outputs):  # fmt: skip
            if any(copied.end - copied.first != copied.first - copied.before
                   for copied in (find_copied(section, self.head) for section in sections)):  # fmt: skip
                raise LayersDiffer
        _require_like_before(program, repetition, memory.stacked, aliases)
        _require_alone(program, repetition)
        left_tensors = self._list_left_out(repetition.tensors, len(program.tensors), tensors)
        left_nodes = self._list_left_out(repetition.operations, len(program.operations), graph.nodes)
        names = [
            CopyNames(
                tuple([tensor.name for tensor in left_tensors[c]]),
                tuple([tensor.stored for tensor in left_tensors[c]]),
                tuple([node.name for node in left_nodes[c]]),
                tuple([format_source(node.span) for node in left_nodes[c]]),
            )
            for c in range(copies)
        ]
        repetition = msgspec.structs.replace(repetition, copies=tuple(names))
        self._require_whole(program, repetition, tensors)
        return repetition

    def _find_layers_of_tensors(self) -> dict[str, int]:
        """The layer of every tensor that one makes, or is the first to read."""
        layer_of: dict[str, int] = {}
        for run in self.runs:
            for n in range(run.first, run.end):
                node = self.plan.graph.nodes[n]
                for name in (*node.outputs, *node.inputs):
                    layer_of.setdefault(name, run.find_layer(n))
        computed = {name for node in self.plan.graph.nodes for name in node.outputs}
        in_runs = {n for run in self.runs for n in range(run.first, run.end)}
        for n, node in enumerate(self.plan.graph.nodes):
            if n not in in_runs:
                for name in (*node.outputs, *(name for name in node.inputs if name not in computed)):
                    layer_of.pop(name, None)
        return layer_of

    def _list_left_out(self, sections: Sequence[Section], length: int, full: Sequence[Item]) -> list[list[Item]]:
        """For each layer that is left out, its items of a sequence, of which few layers have `length`."""
        items: list[list[Item]] = [[] for _ in range(self.left_out)]
        position = 0
        for positions, section, layer in LayerPositions(sections, self.head, self.left_out).walk(length):
            if section is not None and layer is not None:
                items[layer[1] - self.head] += full[position : position + len(positions)]
            position += len(positions)
        if position != len(full):
            raise LayersDiffer
        return items

    def _require_whole(self, program: DeviceProgram, repetition: Repetition, tensors: Sequence[Tensor]) -> None:
        """The copies compute what the whole plan does."""
        copier = LayerCopier(program, repetition)
        if copier.repeat("tensors", copier.copy_tensor) != tuple(tensors):
            raise LayersDiffer
        operations = copier.repeat("operations", copier.copy_operation)
        for node, operation in zip(self.full_plan.graph.nodes, operations, strict=True):
            read, written = ([tensors[t].name for t in numbers] for numbers in (operation.inputs, operation.outputs))
            if (node.name, [*node.inputs], [*node.outputs]) != (operation.name, read, written):
                raise LayersDiffer


def _are_cut_alike(plan: LogicalPlan, folded: Folded) -> bool:
    """Whether all layers that are left out are cut as one that is kept, at the same cost."""
    for n, choice in enumerate(plan.choices):
        like = plan.choices[folded.kept[folded.stands_for[n]]]
        a, b = choice.candidate, like.candidate
        cuts = (a.intervals, a.replicas, a.tiles), (b.intervals, b.replicas, b.tiles)
        if cuts[0] != cuts[1] or choice.repartition != like.repartition:
            return False
    return True


def _find_sections(layers: Sequence[int | None], count: int) -> tuple[Section, ...]:
    """The sections of a sequence whose records belong to these of `count` layers, or to none.

    A layer begins with the first record of it. Few of the layer before it may follow, in all layers alike.
    """
    sections: list[Section] = []
    begun: list[tuple[int, int]] = []  # layers, and where they begin

    def close(end: int) -> None:
        if len(begun) == count > 1:
            sections.append(Section((*[start for _, start in begun], end), begun[0][0] > 0))
        begun.clear()

    for position, layer in enumerate(layers):
        if layer is None:
            if len(begun) == count:
                close(position)
            continue
        if begun and layer not in (number for number, _ in begun[-2:]):
            step = begun[1][0] - begun[0][0] if len(begun) > 1 else layer - begun[0][0]
            if layer != begun[-1][0] + step or abs(step) != 1:
                close(position)
            else:
                begun.append((layer, position))
        if not begun and layer in (0, count - 1):
            begun.append((layer, position))
    close(len(layers))
    return tuple(sections)


def _require_like_before(
    program: DeviceProgram, repetition: Repetition, stacked: frozenset[int], aliases: Mapping[int, int]
) -> None:
    """Every layer that is copied is what a copy of the layer before it would be."""
    copier = LayerCopier(program, repetition)  # of no copies: positions are those of the program
    buffers = copier.layouts["buffers"]

    def require(same: bool) -> None:
        if not same:
            raise LayersDiffer

    serves: dict[str, str] = {}
    for name in ("tensors", "operations", "buffers", "tasks", "outputs"):
        records = getattr(program, name)
        for section in getattr(repetition, name):
            copied = find_copied(section, repetition.head)
            said = repetition.head if section.backwards else repetition.head - 1
            layer = (said + 1, said) if section.backwards else (said - 1, said)
            growth: dict[tuple[object, ...], int] = {}
            for b, q in zip(range(copied.before, copied.first), range(copied.first, copied.end), strict=True):
                before, record = records[b], records[q]
                if name == "tensors":
                    serves[before.name] = record.name
                    require(msgspec.structs.replace(before, name=record.name, stored=record.stored) == record)
                elif name == "operations":
                    serves[before.name] = record.name
                    copy = copier.copy_operation(before, b, None, layer)
                    require(msgspec.structs.replace(copy, name=record.name, source=record.source) == record)
                elif name == "buffers":
                    moved = copier.copy_buffer(before, b, None, layer)
                    require(msgspec.structs.replace(moved, offset=record.offset) == record)
                    further = record.offset - before.offset
                    grows = record.role != "scratch" or q in stacked
                    over = buffers.locate(aliases.get(q, q))
                    kind = record.site, q in stacked, grows, None if over is None else over[0]
                    require(growth.setdefault(kind, further) == further and (grows or not further))
                elif name == "tasks":
                    task = copier.copy_task(before, b, None, layer)
                    require(msgspec.structs.replace(task, serves=serves.get(before.serves, before.serves)) == record)
                else:
                    require(copier.copy_output(before, b, None, layer) == record)


def _require_alone(program: DeviceProgram, repetition: Repetition) -> None:
    """Nothing far away refers to a layer that is copied, or to the one before it, which copies separate it from; but
    what comes behind all layers may refer to the last copy."""
    tasks = LayerPositions(repetition.tasks, repetition.head, 0)
    buffers = LayerPositions(repetition.buffers, repetition.head, 0)
    alone = len(repetition.operations) == 1

    def mark(layout: LayerPositions, count: int) -> bytearray:
        """1 for every record of the layers that copies separate from others: most are of none."""
        marks = bytearray(count)
        for copied in layout.copied:
            end = copied.first if alone else copied.end
            marks[copied.before : end] = b"\1" * (end - copied.before)
        return marks

    separated_tasks, separated_buffers = mark(tasks, len(program.tasks)), mark(buffers, len(program.buffers))

    def require_near(layout: LayerPositions, position: int, said: int | None) -> None:
        located = layout.locate(position)
        if located is not None and (said is None or abs(located[1] - said) > 1):
            raise LayersDiffer

    for output in program.outputs:
        layer = None
        for region in output.regions:
            located = buffers.locate(region.buffer)
            layer = located[1] if located is not None and layer is None else layer
        for region in output.regions:
            if separated_buffers[region.buffer]:
                require_near(buffers, region.buffer, layer)
    for position, task in enumerate(program.tasks):
        befores = [before for before in task.after if separated_tasks[before]]
        regions = (*reads_of(task), *writes_of(task))
        touched = [region.buffer for region in regions if separated_buffers[region.buffer]]
        if befores or touched:
            located = tasks.locate(position)
            said = None if located is None else located[1]
            for before in befores:
                require_near(tasks, before, said)
            for buffer in touched:
                require_near(buffers, buffer, said)
