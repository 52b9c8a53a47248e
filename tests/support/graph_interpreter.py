"""Runs a whole graph by its operators' references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from einc.graph.graph import Graph, TensorKind
from einc_runtime.dtypes import storage_dtype

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Every saved tensor by name, from the inputs, weights and states by name."""
    values = _compute(graph, arrays)
    return {name: values[name] for name in graph.outputs}


def interpret_steps(graph: Graph, steps: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Of each step, every saved tensor and every state by name, as the step leaves them.

    Each step has the arrays that it loads. What is loaded stays, and a state has what the step before left in it, or
    at first zeros.
    """
    states = [tensor for tensor in graph.tensors if tensor.kind is TensorKind.STATE]
    held: dict[str, Array] = {s.name: np.zeros(s.desc.shape, storage_dtype(s.desc.dtype.value)) for s in states}
    results = []
    for arrays in steps:
        held.update(arrays)
        values = _compute(graph, held)
        for node in graph.nodes:  # what the only reader of a state makes is what the state has next
            held.update({name: values[node.outputs[0]] for name in node.inputs if name in {s.name for s in states}})
        results.append({name: values[name] for name in graph.outputs} | {s.name: held[s.name] for s in states})
    return results


def _compute(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    values = dict(arrays)
    for node in graph.nodes:
        values.update(zip(node.outputs, node.operator.reference(*(values[n] for n in node.inputs)), strict=True))
    return values
