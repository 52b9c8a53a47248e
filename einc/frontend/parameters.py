"""Params, dims and presets: the numbers of a model, settled before anything else is looked at.

They may stand in any order and refer to each other, but not in a circle. A preset replaces defining expressions, and
definitions from outside replace them in turn, before anything is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from einc.core.tensor import DType
from einc.errors import SourceSpan
from einc.frontend import ast, constants
from einc.frontend.constants import Static
from einc.frontend.expressions import Application, Expressions, Several, Tensor
from einc.frontend.findings import Findings, Reported
from einc.frontend.parser import parse_text
from einc.frontend.walk import parts
from einc_runtime.text import did_you_mean

DTYPES = tuple(dtype.value for dtype in DType)


@dataclass(slots=True)
class Parameters:
    """The values of all params and dims; `broken` are those that have none because of an error."""

    values: dict[str, Static] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    spans: dict[str, SourceSpan] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)


def evaluate_parameters(
    model: ast.Model,
    definitions: Sequence[tuple[str, str]],
    preset: str | None,
    lost: frozenset[str],
    findings: Findings,
) -> Parameters:
    """The values of a model's params and dims. `definitions` are pairs of a name and the text of an expression."""
    declared = _declarations(model, findings)
    defining = {name: statement.value for name, statement in declared.items()}
    replaced = {**_preset(model, preset, findings), **_definitions(definitions, findings)}
    for name, assign in replaced.items():
        if name in defining:
            defining[name] = assign.value
        elif name not in lost:
            hint = did_you_mean(name, declared)
            findings.add(f"there is no param or dim '{name}'", assign.targets[0].span, hint)
    result = Parameters(spans={name: statement.name.span for name, statement in declared.items()})
    expressions = _expressions(result, declared, lost, findings)
    for name in _in_order(defining, result, findings):
        try:
            _evaluate(declared[name], defining[name], expressions, result, findings)
        except Reported:
            result.broken.add(name)
    return result


def check_new_name(name: ast.Name, known: Mapping[str, SourceSpan], findings: Findings) -> None:
    """Fails unless a name is free; element types are no names."""
    if name.text in DTYPES:
        raise findings.fail(f"'{name.text}' is an element type and cannot be a name", name.span)
    if name.text in known:
        line = known[name.text].line
        raise findings.fail(f"'{name.text}' is defined already, in line {line}", name.span, "choose another name")


def _declarations(model: ast.Model, findings: Findings) -> dict[str, ast.Param | ast.Dim]:
    declared: dict[str, ast.Param | ast.Dim] = {}
    spans: dict[str, SourceSpan] = {}
    for statement in model.statements:
        if isinstance(statement, ast.Param | ast.Dim):
            with suppress(Reported):
                check_new_name(statement.name, spans, findings)
                declared[statement.name.text] = statement
                spans[statement.name.text] = statement.name.span
    return declared


def _preset(model: ast.Model, chosen: str | None, findings: Findings) -> dict[str, ast.Assign]:
    """The assignments of the chosen preset; all presets are checked."""
    presets: dict[str, dict[str, ast.Assign]] = {}
    names = {s.name.text for s in model.statements if isinstance(s, ast.Param | ast.Dim)}
    for statement in model.statements:
        if not isinstance(statement, ast.Preset):
            continue
        if statement.name.text in presets:
            findings.add(f"preset '{statement.name.text}' is defined already", statement.name.span)
        assignments = presets.setdefault(statement.name.text, {})
        for inner in statement.body:
            if not isinstance(inner, ast.Assign) or len(inner.targets) != 1:
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
        span = SourceSpan("--preset", 1, 1, len(chosen) + 1, chosen)
        hint = did_you_mean(chosen, presets) or f"the presets are: {', '.join(sorted(presets)) or 'none'}"
        findings.add(f"there is no preset '{chosen}'", span, hint)
    return presets.get(chosen, {})


def _definitions(definitions: Sequence[tuple[str, str]], findings: Findings) -> dict[str, ast.Assign]:
    """Definitions from outside, parsed as assignments; of several for one name the last counts."""
    result = {}
    for name, text in definitions:
        line = f"{name}={text}"
        before = len(findings)
        statements = parse_text(line, "-D", findings).model.statements
        if len(statements) == 1 and isinstance(statements[0], ast.Assign) and statements[0].targets[0].text == name:
            result[name] = statements[0]
        elif len(findings) == before:
            shown = line.split("\n")[0]
            findings.add("expected one `name=value`", SourceSpan("-D", 1, 1, len(shown) + 1, shown))
    return result


def _expressions(
    known: Parameters, declared: Mapping[str, object], lost: frozenset[str], findings: Findings
) -> Expressions:
    """Evaluation over the params and dims that have values so far; their order sees to it that all needed have."""

    def look_up(name: ast.Name) -> Static:
        if name.text in known.values:
            return known.values[name.text]
        if name.text in declared or name.text in lost:
            raise Reported  # its own error stands among the findings
        hint = did_you_mean(name.text, declared)
        if hint is None and name.span.file == "-D":
            hint = f"a string stands in double quotes: '\"{name.text}\"'"
        raise findings.fail(f"there is no param or dim '{name.text}'", name.span, hint)

    def apply(application: Application) -> NoReturn:
        raise findings.fail(
            f"params and dims know no function '{application.function}'",
            application.syntax.span,
            did_you_mean(application.function, constants.FUNCTIONS)
            or f"the functions of lists are {', '.join(constants.FUNCTIONS)}",
        )

    return Expressions(findings, look_up, apply)


def _evaluate(
    statement: ast.Param | ast.Dim,
    expression: ast.Expression,
    expressions: Expressions,
    result: Parameters,
    findings: Findings,
) -> None:
    name = statement.name.text
    if isinstance(statement, ast.Param):
        value = expressions.value(expression)
        assert not isinstance(value, Several | Tensor)
        result.values[name] = value
        return
    extent = expressions.number(expression, f"the extent of '{name}'")
    if extent < 1:
        raise findings.fail(f"the extent of '{name}' must be at least 1, found {extent}", expression.span)
    result.values[name] = result.dims[name] = extent


def _in_order(defining: Mapping[str, ast.Expression], result: Parameters, findings: Findings) -> Iterator[str]:
    """The names, each after those that it needs; a circle is an error of every name on it. No recursion."""
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
                read = (part.text for part in parts(defining[needed]) if isinstance(part, ast.Name))
                path.append((needed, (name for name in read if name in defining)))
            elif not done[needed] and not {needed, path[-1][0]} <= result.broken:
                names = [name for name, _ in path]
                _report_circle(names[names.index(needed) :], defining, result, findings)
            needed = next(path[-1][1], None) if path else None


def _report_circle(
    circle: Sequence[str], defining: Mapping[str, ast.Expression], result: Parameters, findings: Findings
) -> None:
    result.broken.update(circle)
    shown = [*circle[:6], *(["..."] if len(circle) > 6 else []), circle[0]]
    findings.add(f"'{circle[0]}' is defined by itself: {' -> '.join(shown)}", defining[circle[0]].span)
