"""Weights that share elements of one tensor of a file are one weight before gradients are derived.

Imported models have such weights: embeddings that are tied to logits, a matrix under two shapes, some rows of one that
is also read as a whole. With updates of their own, their common elements would become different numbers.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from einc.core.tensor import TensorDesc, TensorType
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, GraphTensor, TensorKind
from einc.ops.shorthands import cut_out
from einc.training.joins import reshape
from einc.training.tape import Tape

_ROWS = re.compile(r"(?P<name>[^*]+)\[(?P<start>\d+):(?P<stop>\d+)\]")
"""The name of a weight that is some rows of a stored one."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """All elements of `weight`, or these of its rows, which have as many elements as a stored row."""

    weight: GraphTensor
    rows: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _NamedRows:
    """A weight of the graph, and which rows it is of the stored tensor `name`; None where it is that tensor."""

    tensor: GraphTensor
    name: str
    rows: tuple[int, int] | None

    @property
    def row_size(self) -> int:
        assert self.rows is not None
        return self.tensor.desc.type.size // (self.rows[1] - self.rows[0])


def merge_tied_weights(graph: Graph, wrt: Sequence[str] | None = None) -> tuple[Graph, Sequence[str] | None]:
    """The graph in which weights that share elements of a stored tensor are parts of one weight, whose gradient is that
    of all its uses; and the names of `wrt` in it."""
    groups: dict[tuple[object, ...], list[_NamedRows]] = {}
    for tensor in graph.tensors:
        if tensor.kind is TensorKind.WEIGHT and tensor.stored is not None:
            part = _find_rows(tensor, tensor.stored)
            groups.setdefault((part.name, tensor.desc.dtype), []).append(part)
    parts: dict[str, WeightPart] = {}
    for group in groups.values():
        if any(_overlap(first.rows, second.rows) for first, second in itertools.combinations(group, 2)):
            parts |= _merge(group)
    if not parts:
        return graph, wrt
    builder = copy_graph(graph, parts)
    for name in graph.outputs:
        builder.save(name)
    merged = None if wrt is None else [parts[name].weight.name if name in parts else name for name in wrt]
    return builder.build(), merged and list(dict.fromkeys(merged))


def _find_rows(tensor: GraphTensor, stored: str) -> _NamedRows:
    rows = _ROWS.fullmatch(stored)
    if rows is None:
        return _NamedRows(tensor, stored, None)
    return _NamedRows(tensor, rows["name"], (int(rows["start"]), int(rows["stop"])))


def _overlap(first: tuple[int, int] | None, second: tuple[int, int] | None) -> bool:
    return first is None or second is None or max(first[0], second[0]) < min(first[1], second[1])


def _merge(group: Sequence[_NamedRows]) -> dict[str, WeightPart]:
    """What each weight of a group is of one of them that is whole, else of one of all rows, named as the first."""
    weight = next((part.tensor for part in group if part.rows is None), None)
    start = 0
    if weight is None:
        spans = [part.rows for part in group if part.rows is not None]
        start, stop = min(rows[0] for rows in spans), max(rows[1] for rows in spans)
        size = group[0].row_size
        extents = (stop - start, size) if size > 1 else (stop - start,)
        desc = TensorDesc(("rows", "columns")[: len(extents)], extents, group[0].tensor.desc.dtype)
        weight = replace(group[0].tensor, desc=desc, stored=f"{group[0].name}[{start}:{stop}]")
    return {part.tensor.name: WeightPart(weight, _move_rows(part.rows, start)) for part in group}


def _move_rows(rows: tuple[int, int] | None, start: int) -> tuple[int, int] | None:
    return None if rows is None else (rows[0] - start, rows[1] - start)


def copy_graph(graph: Graph, parts: Mapping[str, WeightPart] = MappingProxyType({})) -> GraphBuilder:
    """A builder with the tensors and nodes of a graph, and no outputs; in place of weights that are `parts` of others,
    these are declared and read."""
    builder = GraphBuilder(graph.name)
    declared: set[str] = set()
    for tensor in graph.tensors:
        tensor = parts[tensor.name].weight if tensor.name in parts else tensor
        if tensor.kind is not TensorKind.VALUE and tensor.name not in declared:
            builder.declare(tensor)
            declared.add(tensor.name)
    table, read = graph.tensor_table(), dict[str, str]()
    for node in graph.nodes:
        for name in node.inputs:
            if name in parts and name not in read:
                read[name] = _read_part(builder, name, parts[name], table[name].desc)
        builder.apply(node.operator, [read.get(name, name) for name in node.inputs], node.outputs, node.span)
    return builder


def _read_part(builder: GraphBuilder, name: str, part: WeightPart, desc: TensorDesc) -> str:
    """A tensor with the elements of a part, and the dimensions that the weight in its place had."""
    taken = part.weight.name
    if part.rows is not None:
        start, stop = part.rows
        size = desc.type.size // (stop - start)
        rows = reshape(builder, taken, ("rows", "columns"), (builder.desc(taken).type.size // size, size))
        (taken,) = builder.apply(cut_out(builder.desc(rows), TensorType((start, 0), (stop, size))), (rows,))
    if builder.desc(taken).shape != desc.shape:
        taken = reshape(builder, taken, desc.dims, desc.shape)
    taken = Tape(builder, {}).fit(taken, desc)  # its dimensions may have other names
    return taken if taken == part.weight.name else builder.rename(taken, f"{name}.tied")
