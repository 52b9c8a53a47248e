"""The model of a plan as a page draws it: nodes with places, edges with points, and boxes around repeated layers."""

from __future__ import annotations

from collections.abc import Sequence

from einc.report.folding import fold_graph
from einc.report.html.layout import lay_out
from einc_runtime.plan.schema import Bundle
from einc_runtime.strict_json import Document


def describe_network(bundle: Bundle, operations: Sequence[Document]) -> Document:
    """`operations` are those of the document of `einc explain`, to which the nodes refer by position.

    Places are in columns and rows. Of layers that repeat, the first one is drawn: a run has the columns and rows that
    it takes, and `members`, the operators of all its layers for each drawn node, by position.
    """
    graph = fold_graph(bundle, operations)
    pairs = [(edge.source, edge.target) for edge in graph.edges]
    layout = lay_out(len(graph.nodes), pairs, [edge.back for edge in graph.edges])
    saved = {output.tensor for output in bundle.outputs}
    return {
        "nodes": [
            {
                "operation": node.operation,
                "run": node.run,
                "count": node.count,
                "step": 0 if node.run is None else graph.runs[node.run].period,
                "x": round(x, 3),
                "y": y,
                "output": any(tensor in saved for tensor in bundle.operations[node.operation].outputs),
            }
            for node, (x, y) in zip(graph.nodes, layout.nodes, strict=True)
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "tensor": edge.tensor,
                "bytes": edge.size,
                "back": edge.back,
                "points": [[round(x, 3), y] for x, y in points],
            }
            for edge, points in zip(graph.edges, layout.edges, strict=True)
        ],
        "runs": [{"start": run.start, "period": run.period, "count": run.count} for run in graph.runs],
        "columns": round(layout.columns, 3),
        "rows": layout.rows,
    }
