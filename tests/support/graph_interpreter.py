"""Runs a whole graph by its operators' references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from einc.graph.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


def interpret(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Every saved tensor by name, from the inputs and weights by name."""
    values = dict(arrays)
    for node in graph.nodes:
        values.update(zip(node.outputs, node.operator.reference(*(values[n] for n in node.inputs)), strict=True))
    return {name: values[name] for name in graph.outputs}
