"""Gradients of operators that only move elements: reshape, slice and concat."""

from __future__ import annotations

from einc.ops import registry
from einc.ops.concat import Concat
from einc.ops.slicing import Slice
from einc.training.joins import JoinDraft, TensorAccess, reshape
from einc.training.scatter import write_scatter
from einc.training.tape import NodeGradient
from einc_runtime.plan.index_programs import Position


def differentiate_reshape(node: NodeGradient) -> None:
    """The same elements under the former dimensions."""
    desc = node.operator.inputs[0]
    node.put(0, reshape(node.builder, node.gradient, desc.dims, desc.shape))


def differentiate_slice(node: NodeGradient) -> None:
    """Zeros around the gradient of the part."""
    operator = node.operator
    assert isinstance(operator, Slice)
    desc = node.desc(node.gradient)
    loops = {f"i{axis}": extent for axis, extent in enumerate(desc.shape)}
    join = JoinDraft(loops)
    value = join.read(node.gradient, desc, list(loops))
    positions = tuple(Position(((name, 1),), start) for name, start in zip(loops, operator.starts, strict=True))
    access = TensorAccess(node.node.inputs[0], operator.tensor, positions)
    node.put(0, write_scatter(node.builder, join, access, value, node.name_of(0)))


def differentiate_concat(node: NodeGradient) -> None:
    """Of each part, the part of the gradient where it stands."""
    operator = node.operator
    assert isinstance(operator, Concat)
    desc = node.desc(node.gradient)
    start = 0
    for k, part in enumerate(operator.inputs):
        stop = start + part.shape[operator.axis]
        if node.needs[k]:
            starts, stops = [0] * desc.rank, list(desc.shape)
            starts[operator.axis], stops[operator.axis] = start, stop
            cut = registry.restore("slice", (desc,), {"starts": tuple(starts), "stops": tuple(stops)})
            node.put(k, node.apply(cut, node.gradient)[0])
        start = stop
