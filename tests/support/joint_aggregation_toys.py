"""Operators whose outputs aggregate together, graphs with readers of every kind, and kernels that run them.

They know nothing of where a block stands: what depends on it (indices) comes as an input.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.graph.graph import Graph
from einc.ops import registry
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc_runtime.kernels.base import Kernel
from einc_runtime.kernels.registry import PROVIDERS
from einc_runtime.plan import validation
from einc_runtime.plan.schema import JointAggregation
from tests.support.physical_toys import graph_of

EXTENTS = {"a": 3, "i": 5, "j": 13, "v": 4, "k": 3}
F32, I64 = DType.F32, DType.I64
LAST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Signature:
    inputs: tuple[tuple[str, DType], ...]
    outputs: tuple[tuple[str, DType], ...]
    shardable: str
    aggregation: str
    joint: JointAggregation


SIGNATURES = {
    # softmax over j, applied to values: the primary's dimensions stand in another order, and the companion lacks v
    "average": Signature(
        (("aij", F32), ("ajv", F32)),
        (("ai", F32), ("iav", F32)),
        "aij",
        "logsumexp",
        JointAggregation((1, 0), ((0, 1, 2), (1, 0))),
    ),
    "top": Signature(
        (("aij", I64), ("j", I64)),
        (("aik", I64), ("aik", I64)),
        "ija",
        "topk",
        JointAggregation((0, 1), ((0, 1, 2),) * 2, (2,)),
    ),
}


@dataclass(frozen=True)
class Tuples(MappedOperator):
    """One of the signatures above."""

    kind: str
    family = "tuples"

    @property
    def signature(self) -> Signature:
        return SIGNATURES[self.kind]

    @property
    def title(self) -> str:
        return self.kind

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return tuple(_desc(letters, dtype) for letters, dtype in self.signature.inputs)

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return tuple(_desc(letters, dtype) for letters, dtype in self.signature.outputs)

    @property
    def attributes(self) -> Attributes:
        return {"kind": self.kind}

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return tuple(ShardableIndex(letter, EXTENTS[letter]) for letter in self.signature.shardable)

    @property
    def aggregations(self) -> tuple[str, ...]:
        return (self.signature.aggregation,) * 2

    @property
    def joint_aggregations(self) -> tuple[JointAggregation, ...]:
        return (self.signature.joint,)

    @property
    def kernel(self) -> KernelCall:
        return KernelCall("toy", (("kind", self.kind),))

    def _maps(self, terms: Sequence[tuple[str, DType]]) -> tuple[tuple[DimMap, ...], ...]:
        cut = self.signature.shardable
        return tuple(tuple(DimMap(c if c in cut else None) for c in letters) for letters, _ in terms)

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return self._maps(self.signature.inputs)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return self._maps(self.signature.outputs)

    def flops(self, function: FunctionSpec) -> int:
        return 1

    def reference(self, *arrays: Any) -> tuple[Any, ...]:
        return MEANINGS[self.kind](*arrays)


def _desc(letters: str, dtype: DType) -> TensorDesc:
    return TensorDesc(tuple(letters), tuple(EXTENTS[letter] for letter in letters), dtype)


def average(logits: Any, values: Any) -> tuple[Any, Any]:
    with np.errstate(all="ignore"):
        top = logits.max(axis=2, keepdims=True)
        powers = np.exp(logits.astype(np.float64) - np.where(top == -np.inf, 0, top))
        total = powers.sum(axis=2)
        mean = np.einsum("aij,ajv->iav", powers, values) / np.where(total == 0, 1, total).T[..., None]
        return (np.log(total) + np.where(top == -np.inf, 0, top)[..., 0]).astype(np.float32), mean.astype(np.float32)


def top(x: Any, ids: Any) -> tuple[Any, Any]:
    count = EXTENTS["k"]
    order = np.argsort(-x, axis=2, kind="stable")[..., :count]
    values, indices = np.take_along_axis(x, order, 2), ids[order]
    missing = ((0, 0), (0, 0), (0, count - values.shape[2]))
    return (
        np.pad(values, missing, constant_values=np.iinfo(np.int64).min),
        np.pad(indices, missing, constant_values=LAST),
    )


MEANINGS: Mapping[str, Any] = {"average": average, "top": top}


def build_toy(invocation: Any) -> Kernel:
    """For the runtime: the meaning itself."""

    def run() -> None:
        meaning = MEANINGS[invocation.attributes["kind"]]
        for output, result in zip(invocation.outputs, meaning(*invocation.inputs), strict=True):
            output[...] = result

    return Kernel(lambda _: run)


@pytest.fixture
def toy_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS["numpy"], "toy", ("tests.support.joint_aggregation_toys", "build_toy"))
    monkeypatch.setattr(validation, "require_labels", lambda bundle: [])  # plans have no family of toys


def toy_graph(kind: str, rng: random.Random) -> Graph:
    """One toy, and at random readers of its first output, its second, and both; any of the tensors may be saved.

    The readers are elementwise with transposes, so that they can be cut along every dimension.
    """
    toy = Tuples(kind)
    names = ("p", "q")
    nodes: list[tuple[str, Operator, Sequence[str]]] = [("p q", toy, ("x", "y"))]
    for n, letters in enumerate(rng.sample(["p", "q", "pq", "p", "q", "qp"], rng.randint(0, 4))):
        descs = [toy.outputs[names.index(name)] for name in letters]
        if len(letters) == 2 and set(descs[0].dims) < set(descs[1].dims):
            descs, letters = descs[::-1], letters[::-1]
        if len(letters) == 2 and rng.random() < 0.5:
            operator = registry.call("add", descs, {})
        else:
            operator, letters = (
                registry.call("transpose", [descs[0], *rng.sample(descs[0].dims, descs[0].rank)], {}),
                letters[0],
            )
        nodes.append((f"r{n}", operator, tuple(letters)))
        if rng.random() < 0.5:  # and something that aggregates what was read
            nodes.append(
                (f"s{n}", registry.call("max", [operator.outputs[0], operator.outputs[0].dims[0]], {}), (f"r{n}",))
            )
    computed = [name for output_names, _, _ in nodes for name in output_names.split()]
    last = [name for name in computed if not any(name in inputs for _, _, inputs in nodes)]
    saved = sorted({*last[-1:], *rng.sample(computed, rng.randint(1, len(computed)))})
    return graph_of(nodes, saved)


def toy_arrays(graph: Graph, seed: int) -> dict[str, Any]:
    """Inputs with ties, and with stretches of -inf where weights are logarithmic; and every tensor by its reference."""
    rng = np.random.default_rng(seed)
    toy = graph.nodes[0].operator
    x = rng.integers(-4, 5, toy.inputs[0].shape)
    if toy.inputs[0].dtype is F32:
        logits = (x * 3.0).astype(np.float32)
        logits[rng.random(logits.shape) < 0.2] = -np.inf
        logits[:, 1, : rng.integers(4, 14)] = -np.inf
        logits[0, 0] = -np.inf
        arrays: dict[str, Any] = {"x": logits, "y": rng.normal(size=toy.inputs[1].shape).astype(np.float32)}
    else:
        arrays = {"x": x, "y": np.arange(EXTENTS["j"]) * 7 + 2}
    for node in graph.nodes:
        results = node.operator.reference(*(arrays[name] for name in node.inputs))
        arrays.update(zip(node.outputs, results, strict=True))
    return arrays
