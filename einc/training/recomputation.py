"""Values that gradients need, computed again from fewer that are kept, so that a training step takes less memory.

A tensor is *between blocks* where nothing else that depends on weights is computed before it and read after it, as are
the sums of residuals between the layers of a transformer (T. Chen et al., 2016). What is computed again is added just
before the first gradient that reads it, as copies of the nodes that made it: so they are cut and placed as all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from einc.errors import UsageError
from einc.graph.fuse import fuse
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, updates_state
from einc.training.precision import is_elementwise

AGAIN = ".again"
"""How the names of tensors end that are computed a second time."""
RECOMPUTATIONS = ("none", "cheap", "blocks")
"""What is computed again: nothing; what takes little time (elementwise functions, norms, softmax, moves); all that lies
between two tensors that are between blocks."""
MAX_DIGITS = 6
"""Of a number of blocks: no graph has more nodes."""
MAX_CHAIN = 8
"""Of cheap operators in a row, so many are computed again from a tensor that is kept, so that the rest of a model
without blocks is not computed again for each gradient."""


@dataclass(frozen=True)  # no slots: it remembers what it finds
class ForwardPart:
    """The nodes of a training step up to its loss, and what the nodes behind it read of them."""

    graph: Graph
    loss: str

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        producer, _ = self.graph.producers()[self.loss]
        return self.graph.nodes[: self.graph.positions[producer.name] + 1]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The number of the node that computes a tensor."""
        return {name: n for n, node in enumerate(self.nodes) for name in node.outputs}

    @cached_property
    def between_blocks(self) -> tuple[str, ...]:
        """The tensors that are between blocks, in the order in which they are computed, but for those that take little
        time to be computed of others that are."""
        trained = {t.name for t in self.graph.tensors if t.kind in (TensorKind.WEIGHT, TensorKind.STATE)}
        last: dict[str, int] = {}
        for n, node in enumerate(self.nodes):
            if trained.intersection(node.inputs):
                trained.update(node.outputs)
            last.update(dict.fromkeys(node.inputs, n))
        live: set[str] = set()
        computed: set[str] = set()
        cuts: dict[str, None] = {}
        for n, node in enumerate(self.nodes):
            live.update(name for name in node.outputs if name in trained)
            live = {name for name in live if last.get(name, -1) > n}
            follows = _is_cheap(node) and all(name in cuts for name in node.inputs if name in computed)
            computed.update(node.outputs)
            if len(live) == 1 and not follows:
                cuts.update(dict.fromkeys(live))
        return tuple(cuts)

    def choose_kept(self, level: str, blocks: int | None) -> frozenset[str]:
        """What is kept of the tensors that gradients read."""
        cuts = set(self.between_blocks)
        ends = [self.positions[name] for name in self.between_blocks]
        limit = ends[len(ends) - 1 if blocks is None else min(blocks, len(ends) - 1)] if ends else -1
        kept: set[str] = set(self.graph.outputs)
        chain: dict[str, int] = {}  # of what is not kept: how many nodes are computed again for it
        for n, node in enumerate(self.nodes):
            length = 1 + max((chain[name] for name in node.inputs if name in chain), default=0)
            within = level == "blocks" and n <= limit
            again = not updates_state(node.operator) and (within or (_is_cheap(node) and length <= MAX_CHAIN))
            for name in node.outputs:
                if not again or name in cuts:
                    kept.add(name)
                elif name not in kept:
                    chain[name] = 0 if within else length
        return frozenset(kept)


def recompute(graph: Graph, loss: str, level: str, blocks: int | None = None) -> Graph:
    """The training step, or graph of gradients, in which what a level of RECOMPUTATIONS says is computed again.

    With `blocks`, all of only so many blocks is computed again, the first ones, and of the others what is cheap.
    """
    if level == "none":
        return graph
    part = ForwardPart(graph, loss)
    kept = part.choose_kept(level, blocks)
    names: dict[str, str] = {}
    nodes, added = list(part.nodes), dict[str, list[GraphTensor]]()  # by the result before which they are computed
    table = graph.tensor_table()
    for node in graph.nodes[len(part.nodes) :]:
        for copied in _list_again(part, kept, names, node.inputs):
            outputs = {name: name + AGAIN for name in copied.outputs}
            again = [replace(table[name], name=copy) for name, copy in outputs.items()]
            added.setdefault(node.outputs[0], []).extend(again)
            inputs = tuple(names.get(name, name) for name in copied.inputs)
            nodes.append(replace(copied, name=outputs[copied.name], inputs=inputs, outputs=tuple(outputs.values())))
            names.update({name: copy for name, copy in outputs.items() if name not in kept})
        nodes.append(replace(node, inputs=tuple(names.get(name, name) for name in node.inputs)))
    tensors = tuple([each for tensor in graph.tensors for each in (*added.get(tensor.name, ()), tensor)])
    return replace(graph, tensors=tensors, nodes=_put_updates_last(nodes))


def read_level(text: str) -> tuple[str, int | None]:
    """The level, and the number of blocks, that `none`, `cheap`, `blocks` or `blocks=N` names. Raises UsageError."""
    level, equals, digits = text.partition("=")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    if level not in RECOMPUTATIONS or (equals and (level != "blocks" or not is_number)):
        hint = f"levels are auto, {', '.join(RECOMPUTATIONS)}, and blocks=N for the first N blocks"
        raise UsageError(f"'{text:.40}' does not say what is computed again", hint=hint)
    return level, int(digits) if equals else None


def restore_recomputed(source: Graph, loss: str, again: int) -> Graph:
    """The fused graph of a training step in which `again` operators are computed again; of the level `blocks` where no
    level has as many."""
    count = len(ForwardPart(source, loss).between_blocks)
    levels: list[tuple[str, int | None]] = [("none", None), ("cheap", None), ("blocks", None)]
    for level, blocks in levels:
        graph = fuse(recompute(source, loss, level, blocks))
        if count_again(graph) == again:
            return graph
    low, high = 1, count
    while low < high:  # more blocks have more operators
        middle = (low + high) // 2
        fewer = fuse(recompute(source, loss, "blocks", middle))
        if count_again(fewer) == again:
            return fewer
        low, high = (middle + 1, high) if count_again(fewer) < again else (low, middle)
    return graph


def count_again(graph: Graph) -> int:
    """How many operators of a fused graph compute something again."""
    return sum(node.name.endswith(AGAIN) for node in graph.nodes)


def _list_again(part: ForwardPart, kept: frozenset[str], names: Mapping[str, str], read: Sequence[str]) -> list[Node]:
    """The nodes that compute what is read and neither kept nor there already, in their order."""
    waiting, needed = list(read), set[int]()
    while waiting:
        name = waiting.pop()
        number = part.positions.get(name)
        if number is None or name in kept or name in names or number in needed:
            continue
        needed.add(number)
        waiting += part.nodes[number].inputs
    return [part.nodes[number] for number in sorted(needed)]


def _put_updates_last(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in their order, but what writes over a state behind all that reads the state."""
    last = {name: n for n, node in enumerate(nodes) for name in node.inputs}
    ordered: list[Node] = []
    late: list[Node] = []
    made_late: set[str] = set()
    for n, node in enumerate(nodes):
        state = node.inputs[0] if updates_state(node.operator) else None
        if (state is not None and last[state] > n) or made_late.intersection(node.inputs):
            late.append(node)
            made_late.update(node.outputs)
        else:
            ordered.append(node)
    return (*ordered, *late)


def _is_cheap(node: Node) -> bool:
    return is_elementwise(node.operator, wide=True) or node.operator.family == "rows"
