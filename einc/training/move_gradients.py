"""Gradients of operators that only move elements: reshape and concat."""

from __future__ import annotations

from einc.core.tensor import TensorType
from einc.ops.shorthands import cut_out
from einc.training.joins import reshape
from einc.training.tape import NodeGradient
from einc_runtime.plan.index_patterns import Concatenation


def differentiate_reshape(node: NodeGradient) -> None:
    """The same elements under the former dimensions."""
    desc = node.operator.inputs[0]
    node.put(0, reshape(node.builder, node.gradient, desc.dims, desc.shape))


def differentiate_parts(node: NodeGradient, concatenation: Concatenation) -> None:
    """Of each part, the part of the gradient where it stands."""
    desc, axis = node.desc(node.gradient), concatenation.axis
    for k, start, stop in concatenation.parts:
        if node.needs[k]:
            starts, stops = [0] * desc.rank, list(desc.shape)
            starts[axis], stops[axis] = start, stop
            cut = cut_out(desc, TensorType(tuple(starts), tuple(stops)))
            node.put(k, node.apply(cut, node.gradient)[0])
