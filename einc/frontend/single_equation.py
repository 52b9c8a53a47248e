"""One index equation on its own, for graphs that are built from Python."""

from __future__ import annotations

from collections.abc import Mapping

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast
from einc.frontend.assembly import apply_operator
from einc.frontend.context import LoweringContext
from einc.frontend.equations import lower_equation
from einc.frontend.expressions import EvaluatedCall, MultipleResults, TensorValue, Value
from einc.frontend.findings import AlreadyReported, Findings
from einc.frontend.parameters import Parameters
from einc.frontend.parser import parse_text
from einc.graph.builder import GraphBuilder
from einc.ops import registry
from einc_runtime.text import did_you_mean

SOURCE_NAME = "equation"
"""What errors call the text."""


def add_equation(
    text: str,
    values: Mapping[str, tuple[str, TensorDesc] | bool | int | float],
    builder: GraphBuilder,
    name: str | None = None,
) -> str:
    """Adds the operators of an equation to a graph under construction; returns the name of its result.

    `values` are what its names stand for: numbers, and tensors by their names in the graph. `name` is the preferred
    name of the result, by default that on the left side. Raises ModelError.
    """
    findings = Findings()
    model = parse_text(text, SOURCE_NAME, findings).model
    findings.check()
    statements = model.statements
    if len(statements) != 1 or not isinstance(statement := statements[0], ast.EquationStmt):
        span = statements[-1].span if statements else SourceSpan(SOURCE_NAME, 1, 1, 2, "")
        findings.add("expected one index equation", span, "such as y[i] = sum[j](a[i, j])")
        findings.check()
    assert isinstance(statement, ast.EquationStmt)
    context = LoweringContext(
        findings=findings,
        parameters=Parameters(),
        builder=builder,
        dtype=None,
        lost_names=frozenset(),
        definition_lines={},
        blocks={},
        broken_blocks=frozenset(),
        used_blocks={},
        apply_call=_apply_call,
    )
    for key, value in values.items():
        context.scope.values[key] = TensorValue(*value) if isinstance(value, tuple) else value
    preferred = statement.target.text if name is None else name
    context.start_statement(preferred)
    try:
        return lower_equation(context, statement, preferred).name
    except AlreadyReported:
        findings.check()
        raise


def _apply_call(context: LoweringContext, call: EvaluatedCall) -> Value | MultipleResults:
    if registry.is_callable(call.function):
        return apply_operator(context, call)
    hint = did_you_mean(call.function, registry.list_names())
    raise context.findings.fail(f"there is no operator '{call.function}'", call.syntax.span, hint)
