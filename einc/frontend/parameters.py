"""Params, dims and presets: the numbers of a model, which are evaluated before anything else.

They may stand in any order and refer to each other, but not in a circle. Before anything is evaluated, a preset
replaces defining expressions, and then definitions from the command line or the API replace them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from einc.core.tensor import ELEMENT_TYPES
from einc.errors import SourceSpan
from einc.frontend import ast, constants
from einc.frontend.ast import iterate_parts
from einc.frontend.constants import Static
from einc.frontend.expressions import EvaluatedCall, EvaluationContext, TensorValue, evaluate_integer, evaluate_value
from einc.frontend.findings import AlreadyReported, Findings
from einc.frontend.parser import parse_text
from einc_runtime.text import did_you_mean

MAX_NAMES_LENGTH = 300
"""Characters of a list of names in a hint: three lines."""
DTYPE_NAMES = tuple(dtype.value for dtype in ELEMENT_TYPES)


@dataclass(slots=True)
class Parameters:
    """The values of all params and dims; `broken` are those without a value because of an error."""

    values: dict[str, Static] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    spans: dict[str, SourceSpan] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)


def evaluate_parameters(
    model: ast.ModelSyntax,
    definitions: Sequence[tuple[str, str]],
    preset: str | None,
    lost_names: frozenset[str],
    findings: Findings,
) -> Parameters:
    """The values of a model's params and dims.

    `definitions` are pairs of a name and the text of an expression. `lost_names` are the names in statements that
    could not be parsed.
    """
    declared = _collect_declarations(model, findings)
    defining = {name: statement.value for name, statement in declared.items()}
    replaced = {**_read_presets(model, preset, findings), **_parse_definitions(definitions, findings)}
    for name, assign in replaced.items():
        if name in defining:
            defining[name] = assign.value
        elif name not in lost_names:
            hint = did_you_mean(name, declared) or f"there are {', '.join(declared)[:MAX_NAMES_LENGTH] or 'none'}"
            findings.add(f"there is no param or dim '{name}'", assign.targets[0].span, hint)
    result = Parameters(spans={name: statement.name.span for name, statement in declared.items()})
    context = ParameterContext(findings=findings, known=result, declared=declared, lost_names=lost_names)
    for name in _order_by_need(defining, result, findings):
        try:
            _evaluate_declaration(context, declared[name], defining[name])
        except AlreadyReported:
            result.broken.add(name)
    return result


def check_new_name(name: ast.Name, known: Mapping[str, SourceSpan], findings: Findings) -> None:
    """Fails unless a name is free; element types cannot be names."""
    if name.text in DTYPE_NAMES:
        raise findings.fail(f"'{name.text}' is an element type and cannot be a name", name.span)
    if name.text in known:
        line = known[name.text].line
        raise findings.fail(f"'{name.text}' is defined already, in line {line}", name.span, "choose another name")


def _collect_declarations(model: ast.ModelSyntax, findings: Findings) -> dict[str, ast.ParamDecl | ast.DimDecl]:
    declared: dict[str, ast.ParamDecl | ast.DimDecl] = {}
    spans: dict[str, SourceSpan] = {}
    for statement in model.statements:
        if isinstance(statement, ast.ParamDecl | ast.DimDecl):
            with suppress(AlreadyReported):
                check_new_name(statement.name, spans, findings)
                declared[statement.name.text] = statement
                spans[statement.name.text] = statement.name.span
    return declared


def _read_presets(model: ast.ModelSyntax, chosen: str | None, findings: Findings) -> dict[str, ast.AssignStmt]:
    """The assignments of the chosen preset; the others are checked, too."""
    presets: dict[str, dict[str, ast.AssignStmt]] = {}
    names = {s.name.text for s in model.statements if isinstance(s, ast.ParamDecl | ast.DimDecl)}
    for statement in model.statements:
        if not isinstance(statement, ast.PresetDecl):
            continue
        if statement.name.text in presets:
            findings.add(f"preset '{statement.name.text}' is defined already", statement.name.span)
        assignments = presets.setdefault(statement.name.text, {})
        for inner in statement.body:
            if not isinstance(inner, ast.AssignStmt) or len(inner.targets) != 1:
                findings.add("a preset holds `param = value` only", inner.span)
                continue
            name = inner.targets[0]
            if name.text in assignments:
                findings.add(f"'{name.text}' is set twice in this preset", name.span)
            elif name.text not in names:
                findings.add(f"there is no param or dim '{name.text}'", name.span, did_you_mean(name.text, names))
            else:
                assignments[name.text] = inner
    if chosen is None:
        return {}
    if chosen not in presets:
        hint = did_you_mean(chosen, presets) or f"the presets are: {', '.join(sorted(presets)) or 'none'}"
        argument = f"preset {chosen}"
        span = SourceSpan("", 1, 1, len(argument) + 1, argument)
        findings.add(f"there is no preset '{chosen}'", span, hint)
    return presets.get(chosen, {})


def _parse_definitions(definitions: Sequence[tuple[str, str]], findings: Findings) -> dict[str, ast.AssignStmt]:
    """The given definitions, parsed as assignments; the last one of a name counts."""
    result = {}
    for name, text in definitions:
        line = f"{name}={text}"
        before = len(findings)
        statements = parse_text(line, "", findings).model.statements
        if len(statements) == 1 and isinstance(statements[0], ast.AssignStmt) and statements[0].targets[0].text == name:
            result[name] = statements[0]
        elif len(findings) == before:
            first = line.split("\n")[0]
            findings.add("expected one `name=value`", SourceSpan("", 1, 1, len(first) + 1, first))
    return result


@dataclass(slots=True, kw_only=True)
class ParameterContext(EvaluationContext):
    """Evaluation over the params and dims that have values so far; they are evaluated in the order of their needs."""

    known: Parameters
    declared: Mapping[str, object]
    lost_names: frozenset[str]

    def look_up(self, name: ast.Name) -> Static:
        if name.text in self.known.values:
            return self.known.values[name.text]
        if name.text in self.declared or name.text in self.lost_names:
            raise AlreadyReported
        hint = did_you_mean(name.text, self.declared)
        if hint is None and not name.span.file:
            hint = f"a string stands in double quotes: '\"{name.text}\"'"
        raise self.findings.fail(f"there is no param or dim '{name.text}'", name.span, hint)

    def apply(self, call: EvaluatedCall) -> NoReturn:
        hint = did_you_mean(call.function, constants.LIST_FUNCTIONS)
        raise self.findings.fail(
            f"there is no function '{call.function}' for params and dims",
            call.syntax.span,
            hint or f"the functions of lists are {', '.join(constants.LIST_FUNCTIONS)}",
        )


def _evaluate_declaration(
    context: ParameterContext, statement: ast.ParamDecl | ast.DimDecl, expression: ast.Expression
) -> None:
    name = statement.name.text
    if isinstance(statement, ast.ParamDecl):
        value = evaluate_value(context, expression)
        assert not isinstance(value, TensorValue)
        context.known.values[name] = value
        return
    extent = evaluate_integer(context, expression, f"the extent of '{name}'")
    if extent < 1:
        message = f"the extent of '{name}' must be at least 1, found {extent}"
        raise context.findings.fail(message, expression.span)
    context.known.values[name] = context.known.dims[name] = extent


def _order_by_need(defining: Mapping[str, ast.Expression], result: Parameters, findings: Findings) -> Iterator[str]:
    """The names, each after those that it needs, found without recursion; every name of a circle is an error."""
    done: dict[str, bool] = {}  # False while a name is under way
    for start in defining:
        path: list[tuple[str, Iterator[str]]] = []  # the names under way, and what each needs still
        needed: str | None = start
        while needed is not None or path:
            if needed is None:
                name, _ = path.pop()
                done[name] = True
                if name not in result.broken:
                    yield name
            elif needed not in done:
                done[needed] = False
                read = (part.text for part in iterate_parts(defining[needed]) if isinstance(part, ast.Name))
                path.append((needed, (name for name in read if name in defining)))
            elif not done[needed] and not {needed, path[-1][0]} <= result.broken:
                names = [name for name, _ in path]
                _report_circle(names[names.index(needed) :], defining, result, findings)
            needed = next(path[-1][1], None) if path else None


def _report_circle(
    circle: Sequence[str], defining: Mapping[str, ast.Expression], result: Parameters, findings: Findings
) -> None:
    result.broken.update(circle)
    names = [*circle[:6], *(["..."] if len(circle) > 6 else []), circle[0]]
    findings.add(f"'{circle[0]}' is defined by itself: {' -> '.join(names)}", defining[circle[0]].span)
