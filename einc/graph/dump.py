"""The canonical text of a graph: equal graphs, source positions aside, have equal texts."""

from __future__ import annotations

import json

from einc.graph.graph import Graph, Node, TensorKind


def dump(graph: Graph) -> str:
    """One line per tensor and node, with everything that `registry.restore` needs."""
    table = graph.tensor_table()
    lines = [f"graph {graph.name}"]
    for tensor in graph.tensors:
        if tensor.kind is not TensorKind.VALUE:
            stored = "" if tensor.stored is None else f" from {json.dumps(tensor.stored)}"
            lines.append(f"{tensor.kind.value} {tensor.name} : {tensor.desc}{stored}")
    for node in graph.nodes:
        results = ", ".join(f"{name} : {table[name].desc}" for name in node.outputs)
        lines.append(f"{results} = {_application(node)}")
    lines += [f"output {name}" for name in graph.outputs]
    return "\n".join(lines) + "\n"


def _application(node: Node) -> str:
    attributes = sorted(node.operator.attributes.items())
    inner = ", ".join(f"{key}={json.dumps(value)}" for key, value in attributes)
    return f"{node.operator.family}({', '.join(node.inputs)}) {{{inner}}}"
