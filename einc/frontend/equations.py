"""Index equations: from `y[i, k] = sum[j](a[i, j] * b[j, k])` to joins with an aggregation each.

One equation becomes one operator; an aggregation inside its expression becomes an operator of its own before it, as
does a call or infix expression that is indexed (paper, Section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast
from einc.frontend.assembly import Assembly
from einc.frontend.elements import Element, Elements, Join
from einc.frontend.expressions import Expressions, Tensor
from einc.frontend.findings import Findings
from einc.ops.equation import index_equation
from einc.ops.functions import AGGREGATIONS
from einc.ops.scalar import Operand
from einc_runtime.text import did_you_mean


class Equations:
    """Lowers index equations. `dims` are the extents of the declared dimensions."""

    def __init__(
        self, expressions: Expressions, assembly: Assembly, dims: Mapping[str, int], findings: Findings
    ) -> None:
        self._assembly = assembly
        self._findings = findings
        self._elements = Elements(expressions, assembly, dims, findings, self._inner)

    def tensor(self, statement: ast.Equation, wish: str) -> Tensor:
        """The tensor that an equation defines."""
        value = statement.value
        self._check_unique(statement.indices)
        if isinstance(value, ast.Aggregate):
            return self._aggregate(value, statement.indices, (wish,), statement.span)
        join = Join(_is_product(value))
        element = self._elements.element(value, join)
        missing = [name for name in join.indices() if name not in {index.text for index in statement.indices}]
        if missing and not _is_product(value):
            raise self._findings.fail(
                f"index '{missing[0]}' stands only on the right of '=', which is not one product",
                self._place_of(missing[0], join, statement.span),
                f"write the aggregation out, such as `sum[{', '.join(missing)}](...)` around what it covers",
            )
        result = [(index.text, index.span) for index in statement.indices]
        return self._apply(join, element, result, "sum" if missing else None, (wish,), statement.span)

    def _inner(self, syntax: ast.Aggregate) -> Tensor:
        return self._aggregate(syntax, None, (), syntax.span)

    def _aggregate(
        self,
        syntax: ast.Aggregate,
        result: Sequence[ast.Name] | None,
        wishes: tuple[str, ...],
        span: SourceSpan,
    ) -> Tensor:
        """An aggregation as an operator; with no result given, that has all indices which are left, in order."""
        operation = syntax.operation
        if operation.text not in AGGREGATIONS:
            raise self._findings.fail(
                f"there is no aggregation '{operation.text}'",
                operation.span,
                did_you_mean(operation.text, AGGREGATIONS) or f"use one of {', '.join(AGGREGATIONS)}",
            )
        if not syntax.indices:
            raise self._findings.fail(f"expected indices to aggregate over, found '{operation.text}[]'", operation.span)
        self._check_unique(syntax.indices)
        join = Join(operation.text == "sum" and _is_product(syntax.body))
        element = self._elements.element(syntax.body, join)
        present, gone = join.indices(), [index.text for index in syntax.indices]
        for index in syntax.indices:
            if index.text not in present:
                hint = did_you_mean(index.text, present)
                raise self._findings.fail(
                    f"index '{index.text}' does not stand in what is aggregated", index.span, hint
                )
        left = [name for name in present if name not in gone]
        if result is None:
            named = [(name, self._place_of(name, join, syntax.span)) for name in left]
        else:
            named = [(index.text, index.span) for index in result]
            names = [index.text for index in result]
            for name, place in named:
                if name in gone:
                    raise self._findings.fail(f"index '{name}' is aggregated and cannot stand in the result", place)
            missing = [name for name in left if name not in names]
            if missing:
                place = self._place_of(missing[0], join, syntax.span)
                hint = (
                    f"aggregate over it too, `{operation.text}[{', '.join([*gone, *missing])}]`, or name it on the left"
                )
                raise self._findings.fail(f"index '{missing[0]}' stands only on the right of '='", place, hint)
        return self._apply(join, element, named, operation.text, wishes, span)

    def _apply(
        self,
        join: Join,
        element: Element,
        result: Sequence[tuple[str, SourceSpan]],
        aggregation: str | None,
        wishes: tuple[str, ...],
        span: SourceSpan,
    ) -> Tensor:
        present = join.indices()
        if not join.tensors:
            raise self._findings.fail("expected a tensor with indices on the right of '='", span)
        for name, place in result:
            if name not in present:
                hint = did_you_mean(name, present)
                message = f"index '{name}' of the result stands in no tensor on the right of '='"
                raise self._findings.fail(message, place, hint)
        try:
            if isinstance(element, str):
                raise OperatorError(f'expected numbers, found the string "{element[:40]}"')
            join.program.arity = len(join.tensors)
            first = element if isinstance(element, Operand) else join.program.add("copy", element)
            operator = index_equation(
                [(tensor.desc, labels) for tensor, labels in zip(join.tensors, join.labels, strict=True)],
                [(name, name) for name, _ in result],
                join.program.program(first),
                aggregation,
            )
        except OperatorError as error:
            place = join.spans[error.argument] if isinstance(error.argument, int) else span
            raise self._findings.fail(error.message, place, error.hint) from None
        return self._assembly.equation(operator, join.tensors, wishes, span)

    def _check_unique(self, indices: Sequence[ast.Name]) -> None:
        for k, index in enumerate(indices):
            if index.text in {other.text for other in indices[:k]}:
                raise self._findings.fail(f"index '{index.text}' stands twice here", index.span, "each may stand once")

    def _place_of(self, index: str, join: Join, otherwise: SourceSpan) -> SourceSpan:
        """Where the first tensor with an index stands."""
        places = (span for labels, span in zip(join.labels, join.spans, strict=True) if index in labels)
        return next(places, otherwise)


def _is_product(expression: ast.Expression) -> bool:
    """Whether an expression multiplies indexed tensors and numbers, and does nothing else."""
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ast.Binary) and current.operator == "*":
            waiting += [current.left, current.right]
        elif not isinstance(current, ast.Indexed | ast.Literal | ast.Name):
            return False
    return True
