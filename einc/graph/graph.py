"""The computation as a directed acyclic graph of abstract operators over named tensors, its verifier and its text."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from einc.core.tensor import TensorDesc
from einc.errors import InternalError, SourceSpan
from einc.ops.base import Operator
from einc_runtime.plan.states import IN_PLACE


class TensorKind(enum.Enum):
    """Where a tensor comes from: each run, a weight file, the run before, or an operator."""

    INPUT = "input"
    WEIGHT = "weight"
    STATE = "state"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A tensor of the computation; `stored` names it in a weight file (default: its own name).

    A state with such a name is a weight that runs write over: it is loaded before the first run.
    """

    name: str
    desc: TensorDesc
    kind: TensorKind
    stored: str | None = None
    span: SourceSpan | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an abstract operator.

    `name` is unique among nodes (that of its first output); `inputs` and `outputs` name tensors in the operator's
    order. A tensor may stand more than once among the inputs, and the operator then is the one for that (`apply_to`).
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    span: SourceSpan | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "operator", self.operator.apply_to(self.inputs))


@dataclass(frozen=True)  # no slots: it remembers what it computes
class Graph:
    """Tensors in order of declaration, nodes in topological order, and the names of the saved outputs."""

    name: str
    tensors: tuple[GraphTensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """For every node's name, the node's position in the graph's order."""
        return {node.name: n for n, node in enumerate(self.nodes)}

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """For every node, the positions of the nodes whose outputs it reads, ascending and each once."""
        producers = {output: n for n, node in enumerate(self.nodes) for output in node.outputs}
        return tuple(
            tuple(sorted({producers[name] for name in node.inputs if name in producers})) for node in self.nodes
        )

    def tensor_table(self) -> dict[str, GraphTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def producers(self) -> Mapping[str, tuple[Node, int]]:
        """For every computed tensor, the node that produces it and the position among that node's outputs."""
        return self._producers

    @cached_property
    def _producers(self) -> Mapping[str, tuple[Node, int]]:
        return {output: (node, j) for node in self.nodes for j, output in enumerate(node.outputs)}

    def consumers(self) -> Mapping[str, Sequence[tuple[Node, int]]]:
        """For every tensor, the (node, input position) pairs that read it, in topological order."""
        return self._consumers

    @cached_property
    def _consumers(self) -> Mapping[str, Sequence[tuple[Node, int]]]:
        table: dict[str, list[tuple[Node, int]]] = {tensor.name: [] for tensor in self.tensors}
        for node in self.nodes:
            for k, name in enumerate(node.inputs):
                table[name].append((node, k))
        return table


def count_resident_bytes(graph: Graph, kinds: Collection[TensorKind] = (TensorKind.WEIGHT, TensorKind.STATE)) -> int:
    """What all sites must keep together, however the graph is planned: the tensors of these kinds that operators read
    whole, each once."""
    readers = graph.consumers()
    return sum(
        tensor.desc.type.size * tensor.desc.dtype.itemsize
        for tensor in graph.tensors
        if tensor.kind in kinds and any(node.operator.reads[k] == tensor.desc.type for node, k in readers[tensor.name])
    )


def verify_graph(graph: Graph) -> None:
    """Raises InternalError for a graph that breaks a rule: names are unique; every node reads tensors from before it,
    of its operator's types; every computed tensor has one producer; outputs are computed tensors; a state is written
    over once, after all else that reads it."""
    table = graph.tensor_table()
    _require(len(table) == len(graph.tensors), "two tensors have one name")
    _require(len({node.name for node in graph.nodes}) == len(graph.nodes), "two nodes have one name")
    read: set[str] = set()
    updated: set[str] = set()
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
        for k, name in enumerate(node.inputs):
            updates, is_state = k == 0 and updates_state(operator), table[name].kind is TensorKind.STATE
            _require(is_state or not updates, f"node {node.name} writes over {name}, which is no state")
            _require(name not in updated, f"node {node.name} reads state {name}, which is written over")
            read.update([name] if is_state else [])
            updated.update([name] if updates else [])
    _require(read == updated, "a state is read and never written over")
    _require(present == set(table), "a computed tensor has no producer")
    _require(len(set(graph.outputs)) == len(graph.outputs), "a tensor is saved twice")
    for name in graph.outputs:
        _require(name in table and table[name].kind is TensorKind.VALUE, f"output {name} is not a computed tensor")


def updates_state(operator: Operator) -> bool:
    """Whether the first output is written over the first input, a state."""
    return dict(operator.kernel.attributes).get(IN_PLACE) is True


def find_updaters(graph: Graph) -> dict[str, int]:
    """For every state that is written over, the position of the node that does so."""
    return {node.inputs[0]: n for n, node in enumerate(graph.nodes) if updates_state(node.operator)}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InternalError(f"broken graph: {message}")


def _require_type(node: str, tensor: str, actual: TensorDesc, expected: TensorDesc) -> None:
    _require(actual == expected, f"node {node} takes {tensor} for {expected}, but it is {actual}")


def dump_graph(graph: Graph) -> str:
    """One line per tensor and node, with everything that `registry.restore` needs."""
    table = graph.tensor_table()
    lines = [f"graph {graph.name}"]
    for tensor in graph.tensors:
        if tensor.kind is not TensorKind.VALUE:
            stored = "" if tensor.stored is None else f" from {json.dumps(tensor.stored)}"
            lines.append(f"{tensor.kind.value} {tensor.name} : {tensor.desc}{stored}")
    for node in graph.nodes:
        results = ", ".join(f"{name} : {table[name].desc}" for name in node.outputs)
        lines.append(f"{results} = {_format_application(node)}")
    lines += [f"output {name}" for name in graph.outputs]
    return "\n".join(lines) + "\n"


def _format_application(node: Node) -> str:
    attributes = sorted(node.operator.attributes.items())
    inner = ", ".join(f"{key}={json.dumps(value)}" for key, value in attributes)
    return f"{node.operator.family}({', '.join(node.inputs)}) {{{inner}}}"


def put_in_order(tensors: Sequence[GraphTensor], nodes: Sequence[Node]) -> tuple[GraphTensor, ...]:
    """The tensors with those that nodes make in the order of these, in which equal layers are alike."""
    positions = {name: n for n, name in enumerate(name for node in nodes for name in node.outputs)}
    ordered = iter(sorted((t for t in tensors if t.name in positions), key=lambda tensor: positions[tensor.name]))
    return tuple([next(ordered) if tensor.name in positions else tensor for tensor in tensors])
