"""The computation as a directed acyclic graph of abstract operators over named tensors."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.ops.base import Operator


class TensorKind(enum.Enum):
    """Where a tensor comes from: each run, a weight file, or an operator."""

    INPUT = "input"
    WEIGHT = "weight"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of the computation; `stored` names it in a weight file (default: its own name)."""

    name: str
    desc: TensorDesc
    kind: TensorKind
    stored: str | None = None
    span: SourceSpan | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an abstract operator.

    `name` is unique among nodes (that of its first output); `inputs` and `outputs` name tensors in the operator's
    order. A tensor may stand more than once among the inputs.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    span: SourceSpan | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """Tensors in order of declaration, nodes in topological order, and the names of the saved outputs."""

    name: str
    tensors: tuple[GraphTensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    def tensor_table(self) -> dict[str, GraphTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def producers(self) -> dict[str, tuple[Node, int]]:
        """For every computed tensor, the node that produces it and the position among that node's outputs."""
        return {output: (node, j) for node in self.nodes for j, output in enumerate(node.outputs)}

    def consumers(self) -> dict[str, list[tuple[Node, int]]]:
        """For every tensor, the (node, input position) pairs that read it, in topological order."""
        table: dict[str, list[tuple[Node, int]]] = {tensor.name: [] for tensor in self.tensors}
        for node in self.nodes:
            for k, name in enumerate(node.inputs):
                table[name].append((node, k))
        return table
