"""The model language: from the text of a model to its graph.

The rest of the compiler needs `build` only.
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
    """The graph of a model text, before fusion.

    `file` names the text in errors. `definitions` are pairs of a name and the text of an expression; they replace
    params and dims. `preset` names a preset of the model. `dtype` replaces all floating element types. Raises
    ModelError with all mistakes of the text, and UsageError for an unknown dtype.
    """
    from einc.frontend.findings import Findings
    from einc.frontend.lower import lower_model
    from einc.frontend.parameters import evaluate_parameters
    from einc.frontend.parser import parse_text

    replacement = None if dtype is None else _parse_floating_dtype(dtype)
    findings = Findings()
    parsed = parse_text(text, file, findings)
    name = _find_model_name(parsed.model, file, findings)
    parameters = evaluate_parameters(parsed.model, definitions, preset, parsed.lost_names, findings)
    graph = lower_model(parsed.model, file, name, parameters, parsed.lost_names, replacement, findings)
    if not graph.outputs:
        end = parsed.model.statements[-1].span if parsed.model.statements else SourceSpan(file, 1, 1, 2, "")
        findings.check()
        findings.add("this model has no output", end, "name what to save: `output y`")
    findings.check()
    return graph


def _parse_floating_dtype(name: str) -> DType:
    from einc.core.tensor import FLOAT_NAMES, DType

    name = FLOAT_NAMES.get(name, name)
    floating = {dtype.value: dtype for dtype in DType if dtype.is_float}
    if name not in floating:
        raise UsageError(
            f"expected a floating element type ({', '.join(floating)}), found {name!r}",
            hint="weights of 8 or 4 bits come with a folder that has them: `einc quantize` writes one",
        )
    return floating[name]


def _find_model_name(model: ast.ModelSyntax, file: str, findings: Findings) -> str:
    """The name that a text gives itself, or else the name of its file."""
    from einc.frontend import ast

    names = [statement.name for statement in model.statements if isinstance(statement, ast.ModelDecl)]
    for name in names[1:]:
        findings.add(f"the model has a name already, '{names[0].text}'", name.span)
    stem = os.path.splitext(os.path.basename(file))[0]
    return names[0].text if names else stem or "model"
