"""Building a graph tensor by tensor: what the front end and the Python API share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError, SourceSpan
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.ops.base import Operator


class GraphBuilder:
    """Collects tensors and nodes in the order in which they are added, which is thereby topological.

    Names of inputs and weights are taken as they are and must be new; a computed tensor whose name is taken gets a
    number after a dot (`x.2`), which no name in a model text can clash with.
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
        return self._declare(GraphTensor(name, desc, TensorKind.INPUT, None, span))

    def weight(self, name: str, desc: TensorDesc, stored: str | None = None, span: SourceSpan | None = None) -> str:
        """Declares a tensor that is loaded once, `stored` naming it in its file; raises as `input` does."""
        return self._declare(GraphTensor(name, desc, TensorKind.WEIGHT, stored, span))

    def apply(
        self, operator: Operator, inputs: Sequence[str], names: Iterable[str] = (), span: SourceSpan | None = None
    ) -> tuple[str, ...]:
        """Applies an operator to tensors by name, and returns the names of its outputs.

        `names` are wishes for them, in order; where one is taken or missing, a new one is made.
        """
        wishes = list(names)
        wishes += [operator.title.split("+")[0].split("(")[0]] * (len(operator.outputs) - len(wishes))
        outputs = []
        for wish, desc in zip(wishes, operator.outputs, strict=True):
            name = self.unique_name(wish)
            self._add(GraphTensor(name, desc, TensorKind.VALUE, None, span))
            outputs.append(name)
        for name in (*inputs, *outputs):
            self._mentions[name].append(len(self._nodes))
        self._nodes.append(Node(outputs[0], operator, tuple(inputs), tuple(outputs), span))
        return tuple(outputs)

    def save(self, name: str) -> None:
        """Makes a computed tensor an output; once is as good as twice. Raises OperatorError for any other tensor."""
        if name not in self._places:
            raise OperatorError(f"there is no tensor '{name}' to save")
        tensor = self._tensors[self._places[name]]
        if tensor.kind is not TensorKind.VALUE:
            what = "an input" if tensor.kind is TensorKind.INPUT else "a weight"
            raise OperatorError(
                f"'{name}' is {what}, and only what is computed can be saved", hint=f"save a copy of it: copy({name})"
            )
        if name not in self._outputs:
            self._outputs.append(name)

    def rename(self, old: str, new: str) -> str:
        """Gives a computed tensor the name `new`, or the nearest free one; a computed tensor that has it gives way.

        For results that were given a number because an earlier tensor of the name was in the way.
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

    def unique_name(self, wish: str) -> str:
        """The wished name if it is free, else the first of `wish.2`, `wish.3`, ... that is."""
        name = wish
        while name in self._places:
            self._numbers[wish] = self._numbers.get(wish, 1) + 1
            name = f"{wish}.{self._numbers[wish]}"
        return name

    def build(self) -> Graph:
        return Graph(self.name, tuple(self._tensors), tuple(self._nodes), tuple(self._outputs))

    def _declare(self, tensor: GraphTensor) -> str:
        if tensor.name in self._places:
            raise OperatorError(f"there is a tensor '{tensor.name}' already")
        self._add(tensor)
        return tensor.name

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
