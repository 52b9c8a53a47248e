"""Gradients of softmax, norms, experts, rotations, and of what selects elements."""

from __future__ import annotations

from einc.ops import registry
from einc.ops.rope import Rope
from einc.ops.rows import RowOperator
from einc.ops.selection import TopK
from einc.training.joins import JoinDraft, TensorAccess
from einc.training.scatter import write_scatter
from einc.training.tape import NodeGradient
from einc_runtime.plan.index_programs import Position


def _list_indices(rank: int) -> list[str]:
    return [f"i{axis}" for axis in range(rank)]


def differentiate_softmax(node: NodeGradient) -> None:
    """y * (g - sum(g * y))."""
    operator = node.operator
    assert isinstance(operator, RowOperator)
    names = _list_indices(operator.operands[0].rank)
    indices = ", ".join(names)
    kept = ", ".join(name for axis, name in enumerate(names) if axis != operator.axis)
    y, g = (node.widen(name) for name in (node.node.outputs[0], node.gradient))
    dot = node.write(f"dot[{kept}] = sum[{names[operator.axis]}](g[{indices}] * y[{indices}])", g=g, y=y)
    node.put(0, node.write(f"dx[{indices}] = y[{indices}] * (g[{indices}] - dot[{kept}])", g=g, y=y, dot=dot))


def differentiate_norm(node: NodeGradient) -> None:
    """With n the normalized elements, r the factor by which they were scaled, and h = g * (gain + offset):
    r * (h - n * mean(h * n)), and without the mean of h where the norm takes that of x. Without a gain, h is g."""
    operator = node.operator
    assert isinstance(operator, RowOperator)
    rank, width = operator.operands[0].rank, operator.operands[0].shape[-1]
    names = _list_indices(rank)
    indices, rows, last = ", ".join(names), ", ".join(names[:-1]), names[-1]
    x, g = node.widen(node.node.inputs[0]), node.widen(node.gradient)
    if operator.kind == "layernorm":
        mean = node.write(f"m[{rows}] = sum[{last}](x[{indices}] / {float(width)})", x=x)
        x = node.write(f"c[{indices}] = x[{indices}] - m[{rows}]", x=x, m=mean)
    square = node.write(f"s[{rows}] = sum[{last}](x[{indices}] * x[{indices}] / {float(width)})", x=x)
    factor = node.write(f"r[{rows}] = rsqrt(s[{rows}] + {operator.eps!r})", s=square)
    if node.needs[0]:
        h = g
        for gain in map(node.widen, node.node.inputs[1:2]):
            h = node.write(f"h[{indices}] = g[{indices}] * (gain[{last}] + {operator.offset!r})", g=g, gain=gain)
        dot = node.write(
            f"d[{rows}] = sum[{last}](h[{indices}] * x[{indices}] / {float(width)}) * r[{rows}] * r[{rows}]",
            h=h, x=x, r=factor,
        )  # fmt: skip
        if operator.kind == "layernorm":
            mean = node.write(f"m[{rows}] = sum[{last}](h[{indices}] / {float(width)})", h=h)
            h = node.write(f"c[{indices}] = h[{indices}] - m[{rows}]", h=h, m=mean)
        text = f"dx[{indices}] = r[{rows}] * (h[{indices}] - x[{indices}] * d[{rows}])"
        node.put(0, node.write(text, r=factor, h=h, x=x, d=dot))
    over = f"sum[{rows}]" if rows else ""
    if len(node.needs) > 1 and node.needs[1]:
        text = f"dg[{last}] = {over}(g[{indices}] * x[{indices}] * r[{rows}])"
        node.put(1, node.write(text, g=g, x=x, r=factor))
    if len(node.needs) > 2 and node.needs[2]:
        node.put(2, node.write(f"db[{last}] = {over}(g[{indices}])", g=g))


def differentiate_expert_matmul(node: NodeGradient) -> None:
    """Of rows: the product with the transposed matrices; of a matrix: products of the rows that picked it."""
    x, weight, picks = node.node.inputs
    has_slots = node.desc(x).rank == 3
    if node.needs[0]:
        transposed = node.write("w[e, k, n] = w[e, n, k]", w=weight)
        rows = node.call("expert_matmul", node.gradient, transposed, picks)
        if not has_slots:
            rows = node.write("dx[t, k] = sum[s](r[t, s, k])", r=rows)
        node.put(0, rows)
    if node.needs[1]:
        row = "x[t, s, k]" if has_slots else "x[t, k]"
        chosen = node.write(
            f"c[t, s, e = {node.desc(weight).shape[0]}, n] = where(picks[t, s] == e, g[t, s, n], 0.0)",
            picks=node.call("cast", picks, dtype="i64"), g=node.gradient,
        )  # fmt: skip
        node.put(1, node.write(f"dw[e, n, k] = sum[t, s](c[t, s, e, n] * {row})", c=chosen, x=x))


def differentiate_rope(node: NodeGradient) -> None:
    """The rotation by the opposite angle: that by the angle, between two changes of the sign of the second halves."""
    operator = node.operator
    assert isinstance(operator, Rope)
    turned = _negate_second_half(node, node.gradient)
    inputs = (turned, *node.node.inputs[1:])
    turn = registry.restore(operator.family, tuple(map(node.desc, inputs)), operator.attributes)
    node.put(0, _negate_second_half(node, node.apply(turn, *inputs)[0]))


def _negate_second_half(node: NodeGradient, name: str) -> str:
    desc = node.desc(name)
    names = _list_indices(desc.rank)
    indices = ", ".join(names)
    return node.write(f"y[{indices}] = where({names[-1]} < {desc.shape[-1] // 2}, x[{indices}], -x[{indices}])", x=name)


def differentiate_topk(node: NodeGradient) -> None:
    """Of the values: the element at each index has the gradient."""
    operator = node.operator
    assert isinstance(operator, TopK)
    rank, axis = operator.tensor.rank, operator.axis
    names = _list_indices(rank)
    places = [*(name for at, name in enumerate(names) if at != axis), "k"]
    extents = dict(zip(places, operator.outputs[0].shape, strict=True))
    join = JoinDraft(extents)
    indices = node.node.outputs[1]
    join.read(indices, node.desc(indices), places)
    value = join.read(node.gradient, node.desc(node.gradient), places)
    positions = tuple(Position((("@0", 1),)) if at == axis else Position(((names[at], 1),)) for at in range(rank))
    access = TensorAccess(node.node.inputs[0], operator.tensor, positions)
    node.put(0, write_scatter(node.builder, join, access, value, node.name_of(0)))
