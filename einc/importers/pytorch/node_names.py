"""What nodes of an exported graph are called, and which line of the module called them."""

from __future__ import annotations

import re

from einc.importers.pytorch.exported import ExportedNode
from einc_runtime.text import escape_text

_OF_TORCH = re.compile(r"[/\"]torch/(nn|fx|_\w+)/")


def find_line(node: ExportedNode) -> str:
    """The last line of Python that called the node and is not torch's own, as the export noted it."""
    trace = node.metadata.get("stack_trace")
    if not isinstance(trace, str):
        return ""
    lines = trace.splitlines()
    places = [k for k, line in enumerate(lines) if line.lstrip().startswith("File ")]
    of_user = [k for k in places if _OF_TORCH.search(lines[k]) is None] or places
    if not of_user:
        return ""
    called_at = escape_text(lines[of_user[-1]].strip().removeprefix("File "), 200)
    source = lines[of_user[-1] + 1].strip() if of_user[-1] + 1 < len(lines) else ""
    return f" (called by {called_at}: {escape_text(source, 100)})"


def find_name(node: ExportedNode) -> str:
    """What the result is called: the last name of the module that called the node, or that of the operator."""
    stack = node.metadata.get("nn_module_stack")
    operator = node.target.removeprefix("torch.ops.aten.").partition(".")[0].strip("_")
    if not isinstance(stack, str) or not stack:
        return operator
    path = stack.rpartition(";")[2].split(",")
    module = path[1].rpartition(".")[2] if len(path) > 2 else ""
    return module if module and not module.isdigit() else operator
