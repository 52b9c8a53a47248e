"""Gradients of operators that only move elements: reshape and concat."""

from __future__ import annotations

from einc.core.tensor import TensorType
from einc.ops.concat import Concat
from einc.ops.shorthands import cut_out
from einc.training.joins import reshape
from einc.training.tape import NodeGradient


def differentiate_reshape(node: NodeGradient) -> None:
    """The same elements under the former dimensions."""
    desc = node.operator.inputs[0]
    node.put(0, reshape(node.builder, node.gradient, desc.dims, desc.shape))


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
            cut = cut_out(desc, TensorType(tuple(starts), tuple(stops)))
            node.put(k, node.apply(cut, node.gradient)[0])
        start = stop
