"""The graph of a plan for other programs to draw: the languages of Graphviz and of Mermaid.

Names in a plan may be any text. In both languages they stand between double quotes only, with everything escaped that
could end them, and cut to MAX_LABEL characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.report.folding import FoldedGraph, FoldedNode
from einc.report.tables import describe_trust, format_cut
from einc_runtime.strict_json import Document
from einc_runtime.text import escape_text, format_memory, shorten

MAX_LABEL = 60
"""Characters of a line in a node: longer ones make a picture too wide to read."""


def format_dot(document: Document, graph: FoldedGraph) -> str:
    """The graph as a digraph of Graphviz: layers that repeat in a box, edges as wide as what moves along them."""
    most = max((edge.size for edge in graph.edges), default=0)
    lines = ["digraph plan {", f"  label={_quote_dot([_title(document)])};", "  labelloc=t;"]
    lines += ['  node [shape=box, style=rounded, fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for r, members in enumerate(_group_by_run(graph)):
        indent = "  "
        if r:
            lines += [f"  subgraph cluster_{r} {{", f"    label={_quote_dot([_name_run(graph, r - 1)])};"]
            indent = "    "
        lines += [f"{indent}n{at} [label={_quote_dot(_describe(document, node))}];" for at, node in members]
        lines += ["  }"] if r else []
    for edge in graph.edges:
        width = 1 + 5 * edge.size / most if most else 1
        label = f", label={_quote_dot([format_memory(edge.size)])}" if edge.size else ""
        style = ", style=dashed, constraint=false" if edge.back else ""
        lines.append(f"  n{edge.source} -> n{edge.target} [penwidth={width:.2f}{label}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def format_mermaid(document: Document, graph: FoldedGraph) -> str:
    """The graph as a flowchart of Mermaid, which GitHub draws in Markdown."""
    most = max((edge.size for edge in graph.edges), default=0)
    lines = ["flowchart TD"]
    for r, members in enumerate(_group_by_run(graph)):
        if r:
            lines.append(f"  subgraph run{r}[{_quote_mermaid([_name_run(graph, r - 1)])}]")
        lines += [f"  n{at}[{_quote_mermaid(_describe(document, node))}]" for at, node in members]
        lines += ["  end"] if r else []
    styles = []
    for number, edge in enumerate(graph.edges):
        arrow = "-.->" if edge.back else "-->"
        label = f"|{_quote_mermaid([format_memory(edge.size)])}|" if edge.size else ""
        lines.append(f"  n{edge.source} {arrow}{label} n{edge.target}")
        if edge.size:
            styles.append(f"  linkStyle {number} stroke-width:{1 + 5 * edge.size / most:.2f}px")
    return "\n".join([*lines, *styles]) + "\n"


def _group_by_run(graph: FoldedGraph) -> list[list[tuple[int, FoldedNode]]]:
    """The nodes outside of all runs, and then those of each run, with their positions."""
    groups: list[list[tuple[int, FoldedNode]]] = [[] for _ in range(len(graph.runs) + 1)]
    for at, node in enumerate(graph.nodes):
        groups[0 if node.run is None else node.run + 1].append((at, node))
    return groups


def _name_run(graph: FoldedGraph, run: int) -> str:
    return f"{graph.runs[run].count} equal layers"


def _title(document: Document) -> str:
    known = document["predicted_ms"]
    time = "" if known is None else f", predicted {known:,.3f} ms{describe_trust(document)}"
    return f"{shorten(document['model'], MAX_LABEL)} on {document['devices']} sites of {document['machine']}{time}"


def _describe(document: Document, node: FoldedNode) -> list[str]:
    operation = document["ops"][node.operation]
    time = operation["time"]
    last = format_cut(operation) + ("" if time is None else f", {time['critical_ms']:.3f} ms")
    return [f"{shorten(operation['name'], MAX_LABEL)} = {shorten(operation['op'], MAX_LABEL)}", last]


def _quote_dot(lines: Sequence[str]) -> str:
    r"""Lines between double quotes: a backslash or a quote of a name is escaped, `\n` parts the lines."""
    parts = (escape_text(line, 4 * MAX_LABEL).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(parts) + '"'


def _quote_mermaid(lines: Sequence[str]) -> str:
    """Lines between double quotes, in which everything that is neither a letter nor a digit is an entity."""
    safe = " .,:;*/()+-=_%"
    parts = []
    for line in lines:
        text = escape_text(line, 4 * MAX_LABEL)
        parts.append("".join(c if c.isascii() and (c.isalnum() or c in safe) else f"#{ord(c)};" for c in text))
    return '"' + "<br>".join(parts) + '"'
