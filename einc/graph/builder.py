"""Building a graph tensor by tensor, for the frontend and the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, updates_state
from einc.ops.base import Operator


class GraphBuilder:
    """Collects tensors and nodes. The order in which they are added is topological.

    Inputs and weights keep their names, which must be new. A computed tensor whose name is taken gets a number after a
    dot (`x.2`); no name in a model text has a dot.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._tensors: list[GraphTensor] = []
        self._places: dict[str, int] = {}  # of every tensor among them
        self._nodes: list[Node] = []
        self._mentions: dict[str, list[int]] = {}  # the nodes that read or make a tensor
        self._outputs: list[str] = []
        self._numbers: dict[str, int] = {}

    def input(self, name: str, desc: TensorDesc, span: SourceSpan | None = None) -> str:
        """Declares a tensor that comes with each run; raises OperatorError if the name is taken."""
        return self.declare(GraphTensor(name, desc, TensorKind.INPUT, None, span))

    def weight(self, name: str, desc: TensorDesc, stored: str | None = None, span: SourceSpan | None = None) -> str:
        """Declares a tensor that is loaded once; `stored` is its name in the weight file. Raises as `input` does."""
        return self.declare(GraphTensor(name, desc, TensorKind.WEIGHT, stored, span))

    def state(self, name: str, desc: TensorDesc, span: SourceSpan | None = None) -> str:
        """Declares a tensor that keeps its contents from run to run. Raises as `input` does."""
        return self.declare(GraphTensor(name, desc, TensorKind.STATE, None, span))

    def declare(self, tensor: GraphTensor) -> str:
        """Declares an input, a weight or a state. Raises as `input` does."""
        if tensor.name in self._places:
            raise OperatorError(f"there is already a tensor '{tensor.name}'")
        self._add(tensor)
        return tensor.name

    def apply(
        self,
        operator: Operator,
        inputs: Sequence[str],
        names: Iterable[str] = (),
        span: SourceSpan | None = None,
        *,
        reads_state: bool = False,
    ) -> tuple[str, ...]:
        """Applies an operator to tensors by name, and returns the names of its outputs.

        `names` are their preferred names, in order. If one is taken or missing, a new one is made. Raises OperatorError
        for an operator that reads a state and does not write over it, or is not the first one that does; unless it
        `reads_state`, what the run before left there, before another one writes over it.
        """
        operator = operator if reads_state else self._update_state(operator, inputs)
        preferred = list(names)
        preferred += [operator.title.split("+")[0].split("(")[0]] * (len(operator.outputs) - len(preferred))
        outputs = []
        for name, desc in zip(preferred, operator.outputs, strict=True):
            name = self.unique_name(name)
            self._add(GraphTensor(name, desc, TensorKind.VALUE, None, span))
            outputs.append(name)
        for name in (*inputs, *outputs):
            self._mentions[name].append(len(self._nodes))
        self._nodes.append(Node(outputs[0], operator, tuple(inputs), tuple(outputs), span))
        return tuple(outputs)

    def _update_state(self, operator: Operator, inputs: Sequence[str]) -> Operator:
        """The operator, or that which writes over its first input where this is a state."""
        states = [k for k, name in enumerate(inputs) if self._tensors[self._places[name]].kind is TensorKind.STATE]
        if not states:
            return operator
        if states != [0]:
            raise OperatorError(
                f"'{inputs[states[-1]]}' is a state, and only the first argument of append may be one",
                argument=states[-1],
                hint="read what append returns: it has the new contents",
            )
        updated = operator.update()
        if any(updates_state(self._nodes[n].operator) for n in self._mentions[inputs[0]]):
            raise OperatorError(f"'{inputs[0]}' is a state that has been appended to", argument=0)
        return updated

    def save(self, name: str) -> None:
        """Makes a computed tensor an output, if it is not one yet. Raises OperatorError for any other tensor."""
        if name not in self._places:
            raise OperatorError(f"there is no tensor '{name}' to save")
        tensor = self._tensors[self._places[name]]
        if tensor.kind is not TensorKind.VALUE:
            kind = {TensorKind.INPUT: "an input", TensorKind.WEIGHT: "a weight"}.get(tensor.kind, "a state")
            raise OperatorError(
                f"'{name}' is {kind}, and only what is computed can be saved", hint=f"save a copy of it: copy({name})"
            )
        if name not in self._outputs:
            self._outputs.append(name)

    def rename(self, old: str, new: str) -> str:
        """Gives a computed tensor the name `new` and returns its name; a computed tensor that has this name gets the
        old one.

        An input or weight keeps its name; then nothing changes.
        """
        names = {old: new}
        if new in self._places:
            if old == new or self._tensors[self._places[new]].kind is not TensorKind.VALUE:
                return old
            names[new] = old
        places = {name: self._places.pop(name) for name in names}
        mentions = {name: self._mentions.pop(name) for name in names}
        for before, now in names.items():
            self._places[now], self._mentions[now] = places[before], mentions[before]
            self._tensors[places[before]] = replace(self._tensors[places[before]], name=now)
        for number in {number for numbers in mentions.values() for number in numbers}:
            self._nodes[number] = _rename_tensors(self._nodes[number], names)
        self._outputs = [names.get(name, name) for name in self._outputs]
        return new

    def desc(self, name: str) -> TensorDesc:
        """The description of a tensor that was declared or computed."""
        return self._tensors[self._places[name]].desc

    def is_computed(self, name: str) -> bool:
        """Whether a tensor is neither an input nor a weight nor a state."""
        return self._tensors[self._places[name]].kind is TensorKind.VALUE

    def unique_name(self, name: str) -> str:
        """The preferred name if it is free, else the first free one of `name.2`, `name.3`, ..."""
        candidate = name
        while candidate in self._places:
            self._numbers[name] = self._numbers.get(name, 1) + 1
            candidate = f"{name}.{self._numbers[name]}"
        return candidate

    def build(self) -> Graph:
        return Graph(self.name, tuple(self._tensors), tuple(self._nodes), tuple(self._outputs))

    def _add(self, tensor: GraphTensor) -> None:
        self._places[tensor.name] = len(self._tensors)
        self._mentions[tensor.name] = []
        self._tensors.append(tensor)


def _rename_tensors(node: Node, names: dict[str, str]) -> Node:
    return replace(
        node,
        name=names.get(node.name, node.name),
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
    )
