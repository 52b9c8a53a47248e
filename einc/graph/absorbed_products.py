"""Attention over the rows that keys and values are products of, as multi-head latent attention (DeepSeek) has them.

Where all heads make their keys and values from the same rows, `k[h, t] = [W[h] c[t], r[t]]` and `v[h, t] = U[h] c[t]`,
scores are `q k = (q W[h]) c + q r`, and results are `U[h]` times the same mean of rows `c`. So queries are multiplied
with W before, and results with U behind (DeepSeek-V2, arXiv 2405.04434, Section 2.1.2), and the heads share one row
[c, r] of each token as key and value: a decode step keeps it in place of keys and values of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.tensor import TensorType
from einc.graph.builder import GraphBuilder
from einc.graph.fuse import prune
from einc.graph.graph import Graph, Node, TensorKind
from einc.ops import registry
from einc.ops.attention import Attention
from einc.ops.base import Attributes
from einc.ops.equation import Equation, build_equation
from einc.ops.index_operator import IndexOperator, find_parts
from einc.ops.reshape import Reshape
from einc.ops.scalar import make_step
from einc.ops.shorthands import cut_out, join_along
from einc_runtime.plan.index_programs import COPY_PROGRAM, Position, TensorRead
from einc_runtime.plan.scalar_programs import ScalarInput

_HEADS, _TOKENS, _WIDTH, _DEPTH = "h", "t", "d", "c"
_Axes = tuple[int | None, int, int]
"""The dimensions of heads, if there is one, of tokens, and of the width of a head. All others have extent 1."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Neighbouring columns of keys or values: the columns `span` of `rows` of this width, which all heads have; or of
    the product of `rows` with `weight`, whose dimensions `labels` name."""

    rows: str
    width: int
    span: tuple[int, int]
    weight: str | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _SharedRows:
    """The keys of an attention, of which one part is a product, and its values, a product of the same rows."""

    keys: tuple[_Columns, ...]
    values: _Columns


def absorb_products(graph: Graph) -> Graph:
    """The graph in which attention is over shared rows where a step then gains more by smaller caches than it loses by
    wider products. Every output is what it was, in exact arithmetic."""
    shared = {node.name: rows for node in graph.nodes if (rows := _find_shared_rows(graph, node)) is not None}
    if not shared:
        return graph
    builder = GraphBuilder(graph.name)
    for tensor in graph.tensors:
        if tensor.kind is not TensorKind.VALUE:
            builder.declare(tensor)
    for node in graph.nodes:
        if node.name in shared:
            _apply_to_rows(builder, node, shared[node.name])
        else:
            builder.apply(node.operator, node.inputs, node.outputs, node.span)
    for name in graph.outputs:
        builder.save(name)
    return prune(builder.build())


# ---- finding what keys and values are ----


def _find_shared_rows(graph: Graph, node: Node) -> _SharedRows | None:
    """What keys and values of an attention are made of, if a step over shared rows is faster."""
    operator = node.operator
    if not isinstance(operator, Attention) or not operator.causal or not {*operator.extras} <= {"mask"}:
        return None
    heads = operator.keys.shape[0]
    if heads == 1 or operator.queries.shape[0] != heads:
        return None
    keys = _find_columns(graph, node.inputs[1], (0, 1, 2), (0, operator.keys.shape[2]))
    values = _find_columns(graph, node.inputs[2], (0, 1, 2), (0, operator.values.shape[2]))
    if keys is None or values is None or len(values) != 1:
        return None
    products = [columns for columns in keys if columns.weight is not None]
    (product,) = products if len(products) == 1 else (None,)
    if product is None or values[0].weight is None or product.rows != values[0].rows:
        return None
    table = graph.tensor_table()
    if {table[columns.rows].desc.dtype for columns in keys} != {operator.keys.dtype}:
        return None
    width = operator.keys.shape[2] + operator.values.shape[2]
    depth = product.width + sum(c.span[1] - c.span[0] for c in keys if c.weight is None)
    # Caches have `depth` elements of a token in place of heads * width, and products 2 * depth in place of width.
    return _SharedRows(tuple(keys), values[0]) if heads * width * width > depth * 2 * depth else None


def _find_columns(graph: Graph, name: str, axes: _Axes, span: tuple[int, int]) -> list[_Columns] | None:
    """What the columns `span` of a tensor are; None where they are neither shared by all heads nor products of rows."""
    shape = graph.tensor_table()[name].desc.shape
    if any(extent != 1 for axis, extent in enumerate(shape) if axis not in axes):
        return None
    if axes[0] is None:
        return [_Columns(_skip_reshapes(graph, name), shape[axes[2]], span)] if axes[1] < axes[2] else None
    if name not in graph.producers():
        return None
    node, _ = graph.producers()[name]
    operator = node.operator
    if isinstance(operator, Reshape):
        moved = _move_through_reshape(operator, axes)
        return None if moved is None else _find_columns(graph, node.inputs[0], moved, span)
    if isinstance(operator, Equation):
        return _find_in_equation(graph, node, operator, axes, span)
    parts = find_parts(operator)
    if parts is not None and parts.axis == axes[2]:
        joined: list[_Columns] = []
        for number, start, stop in parts.parts:
            lower, upper = max(span[0], start), min(span[1], stop)
            if lower < upper:
                columns = _find_columns(graph, node.inputs[number], axes, (lower - start, upper - start))
                if columns is None:
                    return None
                joined += columns
        return joined
    if isinstance(operator, IndexOperator) and operator.program.program == COPY_PROGRAM:
        moved = _move_through_copy(operator, axes)
        return None if moved is None else _find_columns(graph, node.inputs[0], moved, span)
    return None


def _find_in_equation(
    graph: Graph, node: Node, operator: Equation, axes: _Axes, span: tuple[int, int]
) -> list[_Columns] | None:
    """Of a transposition or a slice; or of a product of rows with a weight."""
    heads, tokens, width = (operator.result[axis] for axis in axes if axis is not None)
    if operator.program.text == COPY_PROGRAM and operator.aggregation is None:
        (labels,), (box,) = operator.labels, operator.reads
        moved = labels.index(heads), labels.index(tokens), labels.index(width)
        if any(box.shape[axis] != operator.operands[0].shape[axis] for axis in moved[:2]):
            return None
        start = box.lower[moved[2]]
        return _find_columns(graph, node.inputs[0], moved, (span[0] + start, span[1] + start))
    if operator.program.product_factor != 1 or len(operator.operands) != 2 or operator.windows:
        return None
    rows = 0 if tokens in operator.labels[0] else 1
    weight, names = operator.labels[1 - rows], operator.labels[rows]
    extents = dict(zip(names, operator.operands[rows].shape, strict=True))
    depths = [name for name in names if name not in operator.result]
    if len(depths) != 1 or operator.aggregation != "sum" or tokens not in names[: names.index(depths[0])]:
        return None
    meanings = {heads: _HEADS, width: _WIDTH, depths[0]: _DEPTH}
    if sorted(weight) != sorted(meanings) or any(n != 1 for x, n in extents.items() if x not in (tokens, depths[0])):
        return None
    if not _is_constant(graph, node.inputs[1 - rows]):
        return None
    labels, source = tuple(meanings[name] for name in weight), _skip_reshapes(graph, node.inputs[rows])
    return [_Columns(source, extents[depths[0]], span, node.inputs[1 - rows], labels)]


def _move_through_reshape(operator: Reshape, axes: _Axes) -> _Axes | None:
    """The same dimensions of the operand, if it has others than the result only where their extent is 1."""
    before, after = ([a for a, n in enumerate(shape) if n != 1] for shape in (operator.tensor.shape, operator.shape))
    if [operator.tensor.shape[a] for a in before] != [operator.shape[a] for a in after]:
        return None
    moved = dict(zip(after, before, strict=True))
    if any(axis not in moved for axis in axes):
        return None
    heads, tokens, width = (moved[axis] for axis in axes if axis is not None)
    return heads, tokens, width


def _move_through_copy(operator: IndexOperator, axes: _Axes) -> _Axes | None:
    """The same dimensions of the operand, which may have no heads."""
    (read,) = operator.program.reads
    if not isinstance(read, TensorRead) or operator.program.aggregation:
        return None
    loops = [position.terms[0][0] if position.terms else "" for position in read.positions]
    plain = tuple(Position(((loop, 1),)) if loop else Position((), 0) for loop in loops)
    if read.positions != plain:
        return None
    heads, tokens, width = (operator.program.result[axis] for axis in axes if axis is not None)
    if loops.count(tokens) != 1 or loops.count(width) != 1 or loops.count(heads) > 1:
        return None
    extents = operator.program.extents
    if any(n != extents[loop] for loop, n in zip(loops, operator.operands[0].shape, strict=True) if loop):
        return None
    return loops.index(heads) if heads in loops else None, loops.index(tokens), loops.index(width)


def _skip_reshapes(graph: Graph, name: str) -> str:
    """The tensor that this one is under other dimensions of extent 1."""
    while name in graph.producers():
        node = graph.producers()[name][0]
        if not isinstance(node.operator, Reshape):
            break
        shapes = (node.operator.tensor.shape, node.operator.shape)
        if len({tuple(n for n in shape if n != 1) for shape in shapes}) > 1:
            break
        name = node.inputs[0]
    return name


def _is_constant(graph: Graph, name: str) -> bool:
    """Whether a tensor is made of weights alone."""
    if name not in graph.producers():
        return graph.tensor_table()[name].kind is TensorKind.WEIGHT
    return all(_is_constant(graph, source) for source in graph.producers()[name][0].inputs)


# ---- writing attention over rows ----


def _apply_to_rows(builder: GraphBuilder, node: Node, shared: _SharedRows) -> None:
    operator, values, query, name = node.operator, shared.values, node.inputs[0], node.outputs[0]
    assert isinstance(operator, Attention)
    rows = [_take_rows(builder, values, (0, values.width), operator, name)]
    parts, start = [], 0
    for columns in shared.keys:
        stop = start + columns.span[1] - columns.span[0]
        part = _take(builder, query, 2, (start, stop), f"{name}.query")
        if columns.weight is None:
            parts.append(part)
            rows.append(_take_rows(builder, columns, columns.span, operator, name))
        else:
            parts.insert(0, _multiply(builder, part, columns, _DEPTH, f"{name}.absorbed", operator.queries.dims))
        start = stop
    queries, keys = _join(builder, parts, f"{name}.queries"), _join(builder, rows, f"{name}.rows")
    descs = (builder.desc(queries), builder.desc(keys), builder.desc(keys), *operator.inputs[3:])
    attention = registry.restore(operator.family, descs, operator.attributes)
    operands = (queries, keys, keys, *node.inputs[3:])
    mean, _ = builder.apply(attention, operands, (f"{name}.means", node.outputs[1]), node.span)
    part = _take(builder, mean, 2, (0, values.width), f"{name}.mean")
    _multiply(builder, part, values, _WIDTH, name, operator.outputs[0].dims)


def _multiply(
    builder: GraphBuilder, name: str, columns: _Columns, result: str, preferred: str, dims: Sequence[str]
) -> str:
    """The product of queries or means of all heads with the columns' weight, over the width or over the depth."""
    assert columns.weight is not None
    weight = _take(builder, columns.weight, columns.labels.index(_WIDTH), columns.span, f"{columns.weight}.columns")
    summed = _DEPTH if result == _WIDTH else _WIDTH
    operands = [(builder.desc(name), (_HEADS, _TOKENS, summed)), (builder.desc(weight), columns.labels)]
    named = list(zip((_HEADS, _TOKENS, result), dims, strict=True))
    operator = build_equation(operands, named, make_step("mul", ScalarInput(0), ScalarInput(1)), "sum")
    return builder.apply(operator, (name, weight), (preferred,))[0]


def _take_rows(
    builder: GraphBuilder, columns: _Columns, span: tuple[int, int], operator: Attention, preferred: str
) -> str:
    """These columns of rows, with one head: [1, tokens, columns]."""
    shape = 1, operator.keys.shape[1], columns.width
    attributes: Attributes = {"dims": ("head", "tokens", "columns"), "shape": shape}
    reshape = registry.restore(Reshape.family, (builder.desc(columns.rows),), attributes)
    (name,) = builder.apply(reshape, (columns.rows,), (f"{preferred}.row",))
    return _take(builder, name, 2, span, f"{preferred}.columns")


def _take(builder: GraphBuilder, name: str, axis: int, span: tuple[int, int], preferred: str) -> str:
    """The part of a tensor with these places of a dimension."""
    shape = builder.desc(name).shape
    if span == (0, shape[axis]):
        return name
    lower = tuple(span[0] if a == axis else 0 for a in range(len(shape)))
    upper = tuple(span[1] if a == axis else extent for a, extent in enumerate(shape))
    return builder.apply(cut_out(builder.desc(name), TensorType(lower, upper)), (name,), (preferred,))[0]


def _join(builder: GraphBuilder, names: Sequence[str], preferred: str) -> str:
    if len(names) == 1:
        return names[0]
    descs = [builder.desc(name) for name in names]
    return builder.apply(join_along(descs, 2, descs[0].dims[2]), names, (preferred,))[0]
