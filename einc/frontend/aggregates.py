"""Aggregations that a text defines: `aggregate name(a, b) { identity ...; return ... }`.

The body computes what two values, or two tuples of values, become, as an index equation computes an element. It is
evaluated for the types of each use, and its laws are checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from einc.core.tensor import DType
from einc.errors import OperatorError, SourceSpan
from einc.frontend import ast, constants
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue, evaluate_value
from einc.frontend.findings import evaluate_each
from einc.frontend.joins import Element, EquationScope, Join
from einc.frontend.shared_blocks import BlockOrigin, find_library_aggregate, list_library_aggregates
from einc.ops.aggregates import MAX_VALUES, define_aggregate, require_laws
from einc.ops.scalar import resolve_program
from einc_runtime.plan.aggregate_definitions import AggregateDefinition
from einc_runtime.plan.scalar_programs import Operand, ScalarInput
from einc_runtime.text import did_you_mean, format_count

Evaluate = Callable[[LoweringContext, Join, ast.Expression], Element]
"""Evaluates an expression at one index vector."""

PROPERTIES = {"commutative": True, "exact": False}
"""What an aggregate may declare of itself, with what holds where it does not."""


@dataclass(frozen=True, slots=True)
class FoundAggregate:
    """A definition, and the text that it stands in."""

    declared: ast.AggregateDecl
    origin: BlockOrigin

    @property
    def count(self) -> int:
        """How many values are aggregated together."""
        return len(self.declared.operands[0])


def find_aggregate(context: LoweringContext, name: str) -> FoundAggregate | None:
    """The definition that a name stands for: of the model, of a file that it uses, or of the library."""
    origin, declared = BlockOrigin.LIBRARY, find_library_aggregate(name)
    if context.origin is not BlockOrigin.LIBRARY and name in context.used_aggregates:
        origin, declared = BlockOrigin.USED, context.used_aggregates[name]
    if context.origin is BlockOrigin.MODEL and name in context.aggregates:
        origin, declared = BlockOrigin.MODEL, context.aggregates[name]
    if declared is None:
        return None
    _check_operands(context, declared)
    return FoundAggregate(declared, origin)


def list_aggregates(context: LoweringContext) -> list[str]:
    """The names of all definitions that a statement may use."""
    return [*context.aggregates, *context.used_aggregates, *list_library_aggregates()]


def define(
    context: LoweringContext,
    aggregate: FoundAggregate,
    join: Join,
    elements: Sequence[Element],
    index: ast.Name,
    evaluate: Evaluate,
    span: SourceSpan,
) -> tuple[list[Operand], AggregateDefinition]:
    """These elements of a join as operands, and the definition for what they are. `index` is aggregated over. Reports
    what is wrong, and laws that do not hold."""
    if not join.reads:
        raise context.findings.fail("expected a tensor with indices in what is aggregated", span)
    declared = aggregate.declared
    with context.findings.locate_errors(join.locate_argument(span)):
        operands = _fix_literals(join, elements, index)
        types = _find_types(join)
        program = join.program.program(*operands)
        values = resolve_program(program, types)[1][-aggregate.count :]
    with context.enter_origin(aggregate.origin):
        definition = _evaluate_body(context, declared, values, evaluate)
    with context.findings.locate_errors(declared.name.span):
        return operands, require_laws(definition, program, types, values)


def _fix_literals(join: Join, elements: Sequence[Element], index: ast.Name) -> list[Operand]:
    """The elements, of which those that are numbers become operands of the type of the first floating one, or of the
    first one: the value of an index that is aggregated over, times 0, plus the number."""
    types = _find_types(join)
    operands = [element for element in elements if isinstance(element, Operand)]
    kinds = [resolve_program(join.program.program(operand), types)[1][-1] for operand in operands]
    kind = next((kind for kind in kinds if kind.is_float), kinds[0] if kinds else DType.I64)
    fixed: list[Operand] = []
    for element in elements:
        if isinstance(element, Operand):
            fixed.append(element)
            continue
        if isinstance(element, str):
            raise OperatorError(f'expected a number, found the string "{element[:40]}"')
        nothing = join.program.add("mul", join.read_index(index.text, index.span), 0)
        if isinstance(element, bool):
            fixed.append(join.program.add("eq" if element else "ne", nothing, 0))
        else:
            for dtype in (DType.F32, kind) if kind in (DType.F16, DType.BF16) else (kind,):
                nothing = join.program.add(f"cast:{dtype.value}", nothing)
            fixed.append(join.program.add("add", nothing, element))
    return fixed


def _find_types(join: Join) -> list[DType]:
    join.program.arity = len(join.reads)
    return [DType.I64 if read.tensor is None else read.tensor.desc.dtype for read in join.reads]


def _evaluate_body(
    context: LoweringContext, declared: ast.AggregateDecl, values: Sequence[DType], evaluate: Evaluate
) -> AggregateDefinition:
    """The definition over values of these types."""
    findings, name = context.findings, declared.name.text
    left, right = declared.operands
    names = [operand.text for operand in (*left, *right)]
    join = Join(EquationScope(frozenset()), names={name: ScalarInput(k) for k, name in enumerate(names)})
    join.program.arity = len(names)
    *steps, last = declared.body or [declared]
    if not isinstance(last, ast.ReturnStmt):
        raise findings.fail(f"aggregate '{name}' does not end with 'return'", last.span, "end it with `return a + b`")
    identity: list[bool | int | float] = []
    for statement in steps:
        match statement:
            case ast.IdentityStmt() if not identity:
                identity = [_evaluate_number(context, value) for value in statement.values]
            case ast.AssignStmt(targets=(target,)) if target.text not in join.names:
                join.names[target.text] = evaluate(context, join, statement.value)
            case _:
                message = f"aggregate '{name}' has an identity, definitions of new names, and a return"
                raise findings.fail(message, statement.span)
    results = evaluate_each(partial(evaluate, context, join), last.values)
    for counted, number in (("values in its identity", len(identity)), ("values in its return", len(results))):
        if number != len(values):
            raise findings.fail(
                f"aggregate '{name}' takes {format_count(len(values), 'value')}, and has {number} {counted}",
                last.span if "return" in counted else declared.span,
                "an identity changes nothing: `identity 0` for a sum" if not identity else None,
            )
    flags = {**PROPERTIES, **_evaluate_properties(context, declared)}
    with findings.locate_errors(last.span):
        return define_aggregate(
            name,
            identity,
            join.program.program(*map(_require_operand, results)),
            values,
            commutative=flags["commutative"],
            exact=flags["exact"],
        )


def _require_operand(result: Element) -> Operand:
    if not isinstance(result, Operand):
        raise OperatorError(f"an aggregate returns what it makes of its operands, not {result!r} alone")
    return result


def _check_operands(context: LoweringContext, declared: ast.AggregateDecl) -> None:
    """There are a left and a right tuple of as many values, whose names differ."""
    findings, name = context.findings, declared.name.text
    if len(declared.operands) != 2 or len({len(names) for names in declared.operands}) != 1:
        message = f"aggregate '{name}' combines two values, or two tuples of as many values"
        raise findings.fail(message, declared.span, f"such as `aggregate {name}(a, b)` or `{name}((a, i), (b, j))`")
    if len(declared.operands[0]) > MAX_VALUES:
        raise findings.fail(f"at most {MAX_VALUES} values are aggregated together", declared.span)
    seen: set[str] = set()
    for operand in (*declared.operands[0], *declared.operands[1]):
        if operand.text in seen:
            raise findings.fail(f"'{operand.text}' stands twice here", operand.span)
        seen.add(operand.text)


def _evaluate_properties(context: LoweringContext, declared: ast.AggregateDecl) -> dict[str, bool]:
    flags: dict[str, bool] = {}
    for declaration in declared.properties:
        name = declaration.name
        if name.text not in PROPERTIES:
            message = f"an aggregate has no property '{name.text}'"
            hint = did_you_mean(name.text, PROPERTIES) or f"the properties are {', '.join(PROPERTIES)}"
            raise context.findings.fail(message, name.span, hint)
        assert declaration.default is not None
        value = evaluate_value(context, declaration.default)
        if not isinstance(value, bool):
            raise context.findings.fail(f"'{name.text}' is true or false", declaration.span)
        flags[name.text] = value
    return flags


def _evaluate_number(context: LoweringContext, syntax: ast.Expression) -> bool | int | float:
    value = evaluate_value(context, syntax)
    if isinstance(value, TensorValue | tuple | str):
        described = "a tensor" if isinstance(value, TensorValue) else constants.describe_value(value)
        raise context.findings.fail(f"expected a number, found {described}", syntax.span)
    return value
