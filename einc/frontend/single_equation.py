"""One index equation, or one call of the library, on its own, for graphs that are built from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from einc.core.tensor import TensorDesc
from einc.errors import SourceSpan, UsageError
from einc.frontend import ast
from einc.frontend.blocks import apply_call
from einc.frontend.context import LoweringContext, is_recurrence
from einc.frontend.equations import lower_equation
from einc.frontend.expressions import EvaluatedCall, MultipleResults, TensorValue, Value
from einc.frontend.findings import AlreadyReported, Findings
from einc.frontend.lower import lower_body
from einc.frontend.parameters import Parameters
from einc.frontend.parser import parse
from einc.graph.builder import GraphBuilder

SOURCE_NAME = "equation"
"""What errors call the text."""


def add_equation(
    text: str,
    values: Mapping[str, tuple[str, TensorDesc] | bool | int | float | str],
    builder: GraphBuilder,
    name: str | None = None,
) -> str:
    """Adds the operators of an equation to a graph under construction; returns the name of its result.

    `values` are what its names stand for: numbers, strings, and tensors by their names in the graph. `name` is the
    preferred name of the result, by default that on the left side. Raises ModelError.
    """
    findings = Findings()
    statements = _parse_once(text).statements
    if len(statements) != 1 or not isinstance(statement := statements[0], ast.EquationStmt):
        span = statements[-1].span if statements else SourceSpan(SOURCE_NAME, 1, 1, 2, "")
        findings.add("expected one index equation", span, "such as y[i] = sum[j](a[i, j])")
        findings.check()
    assert isinstance(statement, ast.EquationStmt)
    context = _make_context(builder, findings)
    for key, value in values.items():
        context.scope.values[key] = TensorValue(*value) if isinstance(value, tuple) else value
    preferred = statement.target.text if name is None else name
    context.start_statement(preferred)
    try:
        if is_recurrence(context, statement):
            from einc.frontend.recurrences import lower_recurrence

            lower_recurrence(context, statement)
            result = context.scope.values[statement.target.text]
            assert isinstance(result, TensorValue)
            is_called_so = result.name == preferred
            return preferred if is_called_so else builder.rename(result.name, builder.unique_name(preferred))
        return lower_equation(context, statement, preferred).name
    except AlreadyReported:
        findings.check()
        raise


@lru_cache(maxsize=256)
def _parse_once(text: str) -> ast.ModelSyntax:
    """The syntax of a text: the gradients of a model have the same equations over and over. Raises ModelError."""
    return parse(text, SOURCE_NAME)


def add_library_call(
    function: str,
    arguments: Sequence[Value],
    keywords: Mapping[str, Value],
    builder: GraphBuilder,
    names: Sequence[str] = (),
) -> tuple[str, ...]:
    """Adds a call of a definition of the library to a graph under construction; returns the names of its results.

    `names` are the preferred names of the first ones. Raises ModelError, and UsageError for more names than results.
    """
    findings = Findings()
    context = _make_context(builder, findings)
    preferred = tuple(names) or (function,)
    context.start_statement(preferred[0])
    span = SourceSpan("call", 1, 1, len(function) + 1, function)
    call = EvaluatedCall(function, tuple(arguments), keywords, ast.Name(function, span=span), preferred)
    try:
        result = context.apply(call)
    except AlreadyReported:
        findings.check()
        raise
    results = result.values if isinstance(result, MultipleResults) else (result,)
    result_names = [value.name for value in results if isinstance(value, TensorValue)]
    if len(preferred) > len(result_names):
        raise UsageError(f"{function} has {len(result_names)} results, and {len(preferred)} names were given")
    renamed = [builder.rename(old, builder.unique_name(new)) for old, new in zip(result_names, preferred, strict=False)]
    return (*renamed, *result_names[len(renamed) :])


def _make_context(builder: GraphBuilder, findings: Findings) -> LoweringContext:
    return LoweringContext(
        findings=findings,
        parameters=Parameters(),
        builder=builder,
        dtype=None,
        lost_names=frozenset(),
        definition_lines={},
        blocks={},
        broken_blocks=frozenset(),
        used_blocks={},
        aggregates={},
        used_aggregates={},
        apply_call=partial(apply_call, lower_body=lower_body),
    )
