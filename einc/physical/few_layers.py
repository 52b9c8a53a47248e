"""Programs of a few layers that stand for many.

A plan of many equal layers is built with a few of them. In the middle of these, one layer is like the one before it,
but for names and positions: then copies of it follow in the plan (`einc_runtime.plan.repetition`), as many as were left
out. The first layers differ, as they find other things in memory, and so may the last one.

That a copy is right needs no look at it: what two neighbouring layers may do to each other, the layer and the one
before it show, and what lies further back is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from einc.graph.layers import MIN_FOLDED, Folded, fold
from einc.logical.plan import LogicalPlan
from einc.machines.model import Machine
from einc.physical.memory import BuiltLayers
from einc.physical.program import DeviceProgram
from einc.physical.records import format_source, make_tensor_records
from einc_runtime.plan.record import CopyNames, Repetition, Section
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.repetition import LayerCopier, keep, repeat
from einc_runtime.plan.schema import Tensor

Item = TypeVar("Item")

BUILT_LAYERS = 6
"""Layers that are built. The first two find memory that others have used, and the third and fourth were the first to be
alike in all models tried; the fifth may be joined with the last in launches."""


class LayersDiffer(Exception):
    """No layer of a program can stand for those that were left out."""


@dataclass(frozen=True, slots=True)
class FewLayers:
    """The plan of a few layers of `full_plan`; the last layer but one stands for `left_out` more.

    `starts` are the first nodes of the layers, and the one behind the last.
    """

    full_plan: LogicalPlan
    plan: LogicalPlan
    starts: tuple[int, ...]
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
        if folded is None or not _are_cut_alike(plan, folded):
            return None
        starts = tuple(folded.first + layer * folded.length for layer in range(BUILT_LAYERS + 1))
        few = replace(plan, graph=folded.graph, choices=tuple([plan.choices[n] for n in folded.kept]))
        return cls(plan, few, starts, (len(nodes) - len(folded.kept)) // folded.length)

    def repeat(self, program: DeviceProgram, layers: BuiltLayers, tasks: Sequence[int]) -> Repetition:
        """What the whole has in addition to a program of the few layers, of which `tasks` are the first tasks.

        Raises LayersDiffer unless the program with the copies is one of the whole plan.
        """
        graph, copies = self.full_plan.graph, self.left_out
        tensors = make_tensor_records(graph)
        sections = (
            _find_section([tensor.name for tensor in program.tensors], [tensor.name for tensor in tensors], copies),
            *(Section(first, end - first) for first, end in (self.starts[-3:-1], layers.buffers[-3:-1], tasks[-3:-1])),
            _find_section(self.plan.graph.outputs, graph.outputs, copies),
        )
        said, nodes, buffers, steps, outputs = sections
        growth = [0] * len(program.memory)
        for before, buffer in zip(*_take_last_two(program.buffers, buffers), strict=True):
            if buffer.role != "scratch":
                growth[buffer.site] = buffer.offset - before.offset
        names = []
        for c in range(1, copies + 1):
            of_tensors = tensors[said.first + c * said.count : said.end + c * said.count]
            of_nodes = graph.nodes[nodes.first + c * nodes.count : nodes.end + c * nodes.count]
            names.append(
                CopyNames(
                    tuple([tensor.name for tensor in of_tensors]),
                    tuple([tensor.stored for tensor in of_tensors]),
                    tuple([node.name for node in of_nodes]),
                    tuple([format_source(node.span) for node in of_nodes]),
                )
            )
        repetition = Repetition(said, nodes, buffers, steps, outputs, tuple(growth), tuple(names))
        _require_like_before(program, repetition)
        _require_alone(program, repetition)
        self._require_whole(program, repetition, tensors)
        return repetition

    def _require_whole(self, program: DeviceProgram, repetition: Repetition, tensors: Sequence[Tensor]) -> None:
        """The copies compute what the whole plan does."""
        copier, copies = LayerCopier(program, repetition), self.left_out
        if repeat(program.tensors, repetition.tensors, copies, copier.copy_tensor) != tuple(tensors):
            raise LayersDiffer
        operations = repeat(program.operations, repetition.operations, copies, copier.copy_operation)
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


def _find_section(few: Sequence[str], full: Sequence[str], copies: int) -> Section:
    """The names of `few` whose copies follow them in `full`; raises LayersDiffer where there are no such."""
    if len(few) == len(full):
        return Section(0, 0)
    count, remainder = divmod(len(full) - len(few), copies)
    end = next((n for n, (name, full_name) in enumerate(zip(few, full, strict=False)) if name != full_name),
               len(few))  # fmt: skip
    section = Section(end - count, count)
    if remainder or 2 * count > end or keep(full, section, copies) != tuple(few):
        raise LayersDiffer
    return section


def _take_last_two(items: Sequence[Item], section: Section) -> tuple[Sequence[Item], Sequence[Item]]:
    """What the layer before has of a sequence, and what the layer has."""
    return items[section.first - section.count : section.first], items[section.first : section.end]


def _require_like_before(program: DeviceProgram, repetition: Repetition) -> None:
    """The layer is what a copy of the layer before it would be."""

    def back(section: Section) -> Section:
        return Section(section.first - section.count, section.count)

    tensors = _take_last_two(program.tensors, repetition.tensors)[1]
    operations = _take_last_two(program.operations, repetition.operations)[1]
    names = CopyNames(
        tuple([tensor.name for tensor in tensors]),
        tuple([tensor.stored for tensor in tensors]),
        tuple([operation.name for operation in operations]),
        tuple([operation.source for operation in operations]),
    )
    before = Repetition(
        back(repetition.tensors), back(repetition.operations), back(repetition.buffers), back(repetition.tasks),
        back(repetition.outputs), repetition.growth, (names,),
    )  # fmt: skip
    copier = LayerCopier(program, before)

    def require(items: Sequence[Item], section: Section, copy: Callable[[Item, int, int], Item]) -> None:
        earlier, layer = _take_last_two(items, section)
        if len(earlier) != len(layer) or any(
            copy(item, 1, n) != expected for n, (item, expected) in enumerate(zip(earlier, layer, strict=True))
        ):
            raise LayersDiffer

    require(program.tensors, repetition.tensors, copier.copy_tensor)
    require(program.operations, repetition.operations, copier.copy_operation)
    require(program.buffers, repetition.buffers, copier.copy_buffer)
    require(program.outputs, repetition.outputs, copier.copy_output)
    require(program.tasks, repetition.tasks, copier.copy_task)


def _require_alone(program: DeviceProgram, repetition: Repetition) -> None:
    """What comes behind the layer refers to nothing of the layer before it, which copies separate it from; and what
    comes before them to neither."""
    tasks, buffers = (range(s.first - s.count, s.first) for s in (repetition.tasks, repetition.buffers))
    for output in program.outputs[: repetition.outputs.first]:
        if any(region.buffer >= repetition.buffers.first for region in output.regions):
            raise LayersDiffer
    for task in program.tasks[repetition.tasks.end :]:
        if any(before in tasks for before in task.after) or any(
            region.buffer in buffers for region in (*reads_of(task), *writes_of(task))
        ):
            raise LayersDiffer
