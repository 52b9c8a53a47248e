"""The model language: from the text of a model to its graph.

`build` is all that the rest of the compiler needs; `parser.parse` and `printer.print_model` serve tools.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from einc.errors import SourceSpan, UsageError

if TYPE_CHECKING:
    from einc.core.tensor import DType
    from einc.frontend import ast
    from einc.frontend.findings import Findings
    from einc.graph.graph import Graph


def build(
    text: str,
    file: str,
    definitions: Sequence[tuple[str, str]] = (),
    preset: str | None = None,
    dtype: str | None = None,
) -> Graph:
    """The graph of a model text, not fused yet.

    `file` names the text in errors. `definitions` replace params and dims: pairs of a name and the text of an
    expression. `preset` is one of the model's; `dtype` replaces all of its floating element types. Raises ModelError
    with all mistakes of the text, UsageError for a dtype that is none.
    """
    from einc.frontend.findings import Findings
    from einc.frontend.lower import Lowering
    from einc.frontend.parameters import evaluate_parameters
    from einc.frontend.parser import parse_text

    replacement = None if dtype is None else _floating(dtype)
    findings = Findings()
    parsed = parse_text(text, file, findings)
    name = _model_name(parsed.model, file, findings)
    parameters = evaluate_parameters(parsed.model, definitions, preset, parsed.lost, findings)
    lowering = Lowering(parsed.model, name, parameters, parsed.lost, replacement, findings)
    graph = lowering.run()
    if not graph.outputs:
        end = parsed.model.statements[-1].span if parsed.model.statements else SourceSpan(file, 1, 1, 2, "")
        findings.check()
        findings.add("this model has no output", end, "name what to save: `output y`")
    findings.check()
    return graph


def _floating(name: str) -> DType:
    from einc.core.tensor import DType

    floating = {dtype.value: dtype for dtype in DType if dtype.is_float}
    if name not in floating:
        raise UsageError(f"expected a floating element type ({', '.join(floating)}), found {name!r}")
    return floating[name]


def _model_name(model: ast.Model, file: str, findings: Findings) -> str:
    """The name that a text gives itself, else its file's."""
    from einc.frontend import ast

    given = [statement.name for statement in model.statements if isinstance(statement, ast.ModelName)]
    for name in given[1:]:
        findings.add(f"the model has a name already, '{given[0].text}'", name.span)
    stem = os.path.splitext(os.path.basename(file))[0]
    return given[0].text if given else stem or "model"
