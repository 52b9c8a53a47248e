"""Graphs with a loss, one for each case of each operator and definition of the library, and their slopes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from einc.core.tensor import DType
from einc.frontend import build
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, TensorKind
from einc.ops import registry
from einc.ops.base import Operator
from einc.training.gradients import find_needed
from einc.training.tied_weights import copy_graph
from tests.support import aggregate_cases, index_cases, library_cases, operator_cases, recurrence_cases
from tests.support.definition_oracle import Array, random_array
from tests.support.graph_interpreter import interpret
from tests.support.transformer_cases import cases as transformer_cases

LOSS = "loss"
STEP = 1e-5
"""Of central differences: their error is some 1e-10 of a third derivative of 1, and that of rounding some 1e-11."""


@dataclass(frozen=True)
class GradientCase:
    """A graph with a loss, and what it is computed of."""

    graph: Graph
    arrays: Mapping[str, Array]

    @property
    def differentiable(self) -> list[str]:
        """Inputs of floats that the loss depends on, but for the weights of outputs."""
        needed = find_needed(self.graph, LOSS)
        floats = [t.name for t in self.graph.tensors if t.kind is not TensorKind.VALUE and t.desc.dtype.is_float]
        return [name for name in floats if name in needed and not name.startswith("r.")]

    def slope(self, name: str, direction: Array) -> float:
        """How fast the loss changes along a direction of a tensor, by central differences."""
        ends = [interpret(self.graph, {**self.arrays, name: self.arrays[name] + s * direction}) for s in (STEP, -STEP)]
        return float((ends[0][LOSS] - ends[1][LOSS]) / (2 * STEP))


def weigh(graph: Graph, arrays: Mapping[str, Array], seed: int = 0) -> GradientCase:
    """A graph whose loss is the sum of all its float outputs, each element times a random number of its own."""
    builder, rng = copy_graph(graph), np.random.default_rng(seed)
    known_arrays, total = dict(arrays), None
    for name in graph.outputs:
        desc = builder.desc(name)
        if desc.dtype.is_float:
            weight = builder.input(f"r.{name}", desc)
            known_arrays[weight] = rng.uniform(0.5, 1.5, desc.shape) * rng.choice([-1.0, 1.0], desc.shape)
            (part,) = builder.apply(registry.call("mul", [desc, desc], {}), (name, weight))
            if desc.rank:
                names = {"over": tuple(dict.fromkeys(desc.dims))}
                if len(set(desc.dims)) < desc.rank:
                    numbered_dims = {f"d{k}": extent for k, extent in enumerate(desc.shape)}
                    reshaped = registry.call("reshape", [desc], numbered_dims)
                    (part,) = builder.apply(reshaped, (part,))
                    names = {"over": tuple(numbered_dims)}
                (part,) = builder.apply(registry.call("sum", [builder.desc(part)], names), (part,))
            if total is not None:
                pair = [builder.desc(total)] * 2
                (part,) = builder.apply(registry.call("add", pair, {}), (total, part))
            total = part
    assert total is not None
    builder.save(builder.rename(total, LOSS))
    return GradientCase(builder.build(), known_arrays)


def of_operator(operator: Operator, arrays: list[Array]) -> GradientCase:
    builder = GraphBuilder("case")
    names = [builder.input(f"x{k}", desc) for k, desc in enumerate(operator.inputs)]
    for name in builder.apply(operator, names):
        builder.save(name)
    return weigh(builder.build(), dict(zip(names, arrays, strict=True)))


def _draw(operator: Operator, positive: bool) -> list[Array]:
    rng = np.random.default_rng(3)
    return [random_array(desc, rng, positive) for desc in operator.inputs]


POSITIVE_SLOPES = {*operator_cases.POSITIVE, "log2", "log1p"}
STEPPED = {"floor", "ceil", "round", "trunc", "sign", "floordiv"}
"""Functions without a slope: a loss that depends on a tensor through them alone has no gradient."""
UNTRIED = {"cast:f16", "cast:bf16", "cast:f32", "tan", "cummin_behind"}
"""What central differences say nothing of: values that are rounded, next to a pole, or infinite."""


def has_gradient(operator: Operator) -> bool:
    """Whether it has floats on both sides, and may be differentiated at all."""
    ends = (operator.inputs, operator.outputs)
    return all(any(desc.dtype.is_float for desc in descs) for descs in ends) and operator.family != "append"


def list_operator_cases() -> Iterator[tuple[str, GradientCase]]:
    """Of f64, all of them: calls, equations, index equations, recurrences, aggregations of a model's own."""
    f64 = DType.F64
    tables = (operator_cases.structural(f64), operator_cases.floating(f64), operator_cases.unary_and_binary(f64))
    for name, operator in ((name, operator) for table in tables for name, operator in table.items()):
        if has_gradient(operator) and name not in UNTRIED | STEPPED:
            yield name, of_operator(operator, _draw(operator, name in POSITIVE_SLOPES))
    for name, case in transformer_cases(f64).items():
        if has_gradient(case.operator):
            yield name, of_operator(case.operator, case.arrays(3))
    for kind, cases in (
        ("index", index_cases.CASES),
        ("recurrence", recurrence_cases.CASES),
        ("aggregate", aggregate_cases.CASES),
    ):
        for name, case in cases.items():
            if "f64" in case.dtypes and name not in UNTRIED and has_gradient(operator := case.operator("f64")):
                yield f"{kind} {name}", of_operator(operator, case.arrays(operator, 3))


def list_library_cases() -> Iterator[tuple[str, GradientCase]]:
    """Each definition of the library, as a model calls it."""
    for name, case in library_cases.CASES.items():
        graph = build(case.text("f64"), "m.ein")
        if any(graph.tensor_table()[output].desc.dtype.is_float for output in graph.outputs):
            rng = np.random.default_rng(3)
            arrays = {
                tensor.name: np.asarray(case.draws[tensor.name](rng)).astype(tensor.desc.dtype.numpy())
                if tensor.name in case.draws
                else random_array(tensor.desc, rng)
                for tensor in graph.tensors
                if tensor.kind is TensorKind.INPUT
            }
            yield f"library {name}", weigh(graph, arrays)
