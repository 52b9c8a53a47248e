"""Checks every invariant of a graph; what it finds is a bug of the stage that made it."""

from __future__ import annotations

from einc.core.tensor import TensorDesc
from einc.errors import InternalError
from einc.graph.graph import Graph, TensorKind
from einc.ops.base import merges_fault


def verify(graph: Graph) -> None:
    """Raises InternalError unless names are unique, every node reads what stands before it and is typed as its
    operator says, every computed tensor has one producer, the outputs are computed tensors, and what aggregates
    together fits together."""
    table = graph.tensor_table()
    _require(len(table) == len(graph.tensors), "two tensors have one name")
    _require(len({node.name for node in graph.nodes}) == len(graph.nodes), "two nodes have one name")
    present = {tensor.name for tensor in graph.tensors if tensor.kind is not TensorKind.VALUE}
    for node in graph.nodes:
        operator = node.operator
        _require(bool(node.outputs) and node.name == node.outputs[0], f"node {node.name} is not named as its output")
        _require(len(node.inputs) == len(operator.inputs), f"node {node.name} has {len(node.inputs)} inputs")
        _require(len(node.outputs) == len(operator.outputs), f"node {node.name} has {len(node.outputs)} outputs")
        for name, desc in zip(node.inputs, operator.inputs, strict=True):
            _require(name in present, f"node {node.name} reads {name}, which is not there yet")
            _require_type(node.name, name, table[name].desc, desc)
        for name, desc in zip(node.outputs, operator.outputs, strict=True):
            _require(name in table and name not in present, f"node {node.name} produces {name}, which it may not")
            _require_type(node.name, name, table[name].desc, desc)
            present.add(name)
        fault = merges_fault(operator)
        _require(fault is None, f"node {node.name}: {fault}")
    _require(present == set(table), "a computed tensor has no producer")
    _require(len(set(graph.outputs)) == len(graph.outputs), "a tensor is saved twice")
    for name in graph.outputs:
        _require(name in table and table[name].kind is TensorKind.VALUE, f"output {name} is no computed tensor")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InternalError(f"broken graph: {message}")


def _require_type(node: str, tensor: str, found: TensorDesc, expected: TensorDesc) -> None:
    _require(found == expected, f"node {node} takes {tensor} for {expected}, but it is {found}")
