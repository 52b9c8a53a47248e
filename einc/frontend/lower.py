"""From the syntax to the graph: declarations, assignments, blocks and repeats, in the order of the text.

Blocks and repeats are unrolled: each application adds its own weights and operators. A statement that fails is
reported and its names are poisoned. Reading a poisoned name is not reported again, so that one mistake is reported
once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einc.core.tensor import DType, TensorDesc
from einc.errors import SourceSpan
from einc.frontend import ast, constants, limits
from einc.frontend.assembly import apply_operator, collect_outputs, declare_tensor, resolve_dtype, save_outputs
from einc.frontend.ast import iterate_parts, list_own_expressions
from einc.frontend.context import LoweringContext, Scope
from einc.frontend.equations import lower_equation
from einc.frontend.expressions import (
    EvaluatedCall,
    MultipleResults,
    Value,
    evaluate_integer,
    evaluate_results,
    evaluate_value,
)
from einc.frontend.findings import FOREIGN_CALLS, AlreadyReported, Findings
from einc.frontend.parameters import DTYPE_NAMES, Parameters, check_new_name
from einc.frontend.quantized import declare_quantized
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, TensorKind
from einc.ops import registry
from einc_runtime.text import did_you_mean, format_count

_KEYWORDS: dict[type[ast.Statement], str] = {
    ast.ModelDecl: "model", ast.ParamDecl: "param", ast.DimDecl: "dim", ast.BlockDecl: "block",
    ast.PresetDecl: "preset", ast.InputDecl: "input", ast.StateDecl: "state",
}  # fmt: skip
"""Statements that may not stand everywhere, and the words that they start with."""


def lower_model(
    model: ast.ModelSyntax,
    name: str,
    parameters: Parameters,
    lost_names: frozenset[str],
    dtype: DType | None,
    findings: Findings,
) -> Graph:
    """The graph of a model, called `name`, as far as it could be built; `findings` tell whether it is complete.

    `lost_names` are the names in statements that could not be parsed. `dtype` replaces all floating element types.
    """
    blocks, broken_blocks = _declare_blocks(model, parameters, findings)
    context = LoweringContext(
        findings=findings,
        parameters=parameters,
        builder=GraphBuilder(name),
        dtype=dtype,
        lost_names=lost_names,
        definition_lines={
            name.text: name.span.line for s in reversed(model.statements) for name in _list_defined_names(s)
        },
        blocks=blocks,
        broken_blocks=broken_blocks,
        apply_call=_apply_call,
    )
    _lower_body(context, model.statements)
    collect_outputs(context)
    save_outputs(context)
    return context.builder.build()


def _lower_body(context: LoweringContext, statements: Sequence[ast.Statement]) -> None:
    """Lowers the statements of a body. The `return` of a block is left to the caller."""
    for statement in statements:
        try:
            _count_steps(context, statement)
            _lower_statement(context, statement)
        except AlreadyReported:
            for name in _list_defined_names(statement):
                context.poison(name)


def _lower_statement(context: LoweringContext, statement: ast.Statement) -> None:
    scope = context.scope
    at_top = scope.outer is None and not scope.is_block
    match statement:
        case ast.AssignStmt():
            _lower_assignment(context, statement)
        case ast.EquationStmt():
            name = scope.full_name(statement.target.text)
            context.start_statement(name)
            context.define(statement.target, lower_equation(context, statement, name))
        case ast.RepeatStmt():
            _lower_repeat(context, statement)
        case ast.ReturnStmt() if scope.is_block:
            raise context.findings.fail("'return' must be the last statement of a block", statement.span)
        case ast.ReturnStmt():
            message = "'return' is allowed in blocks only"
            raise context.findings.fail(message, statement.span, "a model has `output y`")
        case ast.InputDecl() | ast.StateDecl() if scope.is_block:
            message = f"'{_KEYWORDS[type(statement)]}' is not allowed in a block"
            raise context.findings.fail(message, statement.span, "pass it to the block as an argument")
        case ast.OutputStmt() if scope.is_block:
            message = "'output' is not allowed in a block"
            raise context.findings.fail(message, statement.span, "return it from the block")
        case ast.InputDecl() | ast.WeightDecl() | ast.StateDecl():
            _lower_declaration(context, statement)
        case ast.OutputStmt():
            scope.outputs += statement.names
            if statement.definition is not None:
                _lower_statement(context, statement.definition)
        case _ if not at_top:
            message = f"'{_KEYWORDS[type(statement)]}' is not allowed in a block or repeat"
            raise context.findings.fail(message, statement.span)
        case _:
            pass  # params, dims, presets and blocks have been evaluated before


def _count_steps(context: LoweringContext, statement: ast.Statement) -> None:
    """Bounds the work of unrolling."""
    sizes = context.statement_sizes
    if id(statement) not in sizes:
        sizes[id(statement)] = 1 + sum(1 for own in list_own_expressions(statement) for _ in iterate_parts(own))
    context.step_count += sizes[id(statement)]
    if context.step_count <= limits.MAX_UNROLLED_STEPS:
        return
    if not context.is_exhausted:
        context.is_exhausted = True
        message = f"unrolling this model takes more than {limits.MAX_UNROLLED_STEPS:,} steps, the most that are allowed"
        context.findings.add(message, statement.span, "blocks and repeats are unrolled; repeat fewer times")
    raise AlreadyReported


def _list_defined_names(statement: ast.Statement) -> tuple[ast.Name, ...]:
    """The tensors and values that a statement defines in the scope where it stands."""
    match statement:
        case ast.AssignStmt():
            return statement.targets
        case ast.EquationStmt():
            return (statement.target,)
        case ast.InputDecl() | ast.WeightDecl() | ast.StateDecl():
            return (statement.name,)
        case ast.OutputStmt(definition=ast.AssignStmt() | ast.EquationStmt() as definition):
            return _list_defined_names(definition)
        case ast.RepeatStmt():
            return tuple(name for inner in statement.body for name in _list_defined_names(inner))
        case _:
            return ()


# -- inputs and weights -----------------------------------------------------------------------------------------------


def _lower_declaration(context: LoweringContext, statement: ast.InputDecl | ast.WeightDecl | ast.StateDecl) -> None:
    desc = _evaluate_type(context, statement.dtype, statement.dims)
    kind, stored = TensorKind.STATE if isinstance(statement, ast.StateDecl) else TensorKind.INPUT, None
    if isinstance(statement, ast.WeightDecl):
        kind = TensorKind.WEIGHT
        stored = None if statement.stored is None else _fill_stored_name(context, statement.stored)
    context.check_new(statement.name)
    if isinstance(statement, ast.WeightDecl) and statement.storage is not None:
        context.define(statement.name, declare_quantized(context, statement, desc, stored))
        return
    name = context.scope.full_name(statement.name.text)
    context.define(statement.name, declare_tensor(context, kind, name, desc, stored, statement.span))


def _evaluate_type(context: LoweringContext, dtype: ast.Name, dims: Sequence[ast.Name]) -> TensorDesc:
    """A declared type; all of its mistakes are reported."""
    extents = [context.parameters.dims.get(dim.text, 0) for dim in dims]
    if dtype.text not in DTYPE_NAMES:
        hint = did_you_mean(dtype.text, DTYPE_NAMES) or f"the element types are {', '.join(DTYPE_NAMES)}"
        context.findings.add(f"there is no element type '{dtype.text}'", dtype.span, hint)
    for dim in dims:
        if dim.text not in context.parameters.dims:
            _report_dim(context, dim)
    if dtype.text not in DTYPE_NAMES or 0 in extents:
        raise AlreadyReported
    return TensorDesc(tuple(dim.text for dim in dims), tuple(extents), DType(resolve_dtype(context, dtype.text)))


def _report_dim(context: LoweringContext, dim: ast.Name) -> None:
    if dim.text in context.parameters.values:
        hint = f"declare it as `dim {dim.text} = ...`"
        context.findings.add(f"'{dim.text}' is a param, not a dim", dim.span, hint)
    elif not context.may_be_lost(dim.text):
        suggestion = did_you_mean(dim.text, context.parameters.dims)
        context.findings.add(f"there is no dim '{dim.text}'", dim.span, suggestion)


def _fill_stored_name(context: LoweringContext, literal: ast.LiteralExpr) -> str:
    """A name in the weight file, with `{i}` replaced by the value of i."""

    def fill(match: re.Match[str]) -> str:
        word = match[1].strip()
        value = context.look_up(ast.Name(word, span=literal.span)) if word.isidentifier() else None
        if isinstance(value, bool) or not isinstance(value, int | str):
            message = f"expected the name of an integer or string in braces, found '{{{match[1]}}}'"
            raise context.findings.fail(message, literal.span)
        return str(value)

    filled = re.sub(r"\{([^{}]*)\}", fill, str(literal.value))
    if len(filled) > limits.FULL_NAME_CHARACTERS:
        message = f"this name has more than {limits.FULL_NAME_CHARACTERS:,} characters"
        raise context.findings.fail(message, literal.span)
    if not filled or not filled.isprintable():
        message = "the name of a stored tensor must not be empty, and must have printable characters only"
        raise context.findings.fail(message, literal.span)
    return filled


# -- values and repeats -----------------------------------------------------------------------------------------------


def _lower_assignment(context: LoweringContext, statement: ast.AssignStmt) -> None:
    result_names = tuple(context.scope.full_name(name.text) for name in statement.targets)
    context.start_statement(result_names[0])
    result = evaluate_results(context, statement.value, result_names)
    values = result.values if isinstance(result, MultipleResults) else (result,)
    if isinstance(result, MultipleResults) and result.first_stands_for_all and len(statement.targets) == 1:
        values = values[:1]
    if len(values) != len(statement.targets):
        message = f"expected {format_count(len(statement.targets), 'value')}, found {len(values)}"
        raise context.findings.fail(message, statement.value.span)
    for name, value in zip(statement.targets, values, strict=True):
        context.define(name, value)


def _lower_repeat(context: LoweringContext, statement: ast.RepeatStmt) -> None:
    meaning = "the number of iterations"
    count = evaluate_integer(context, statement.count, meaning)
    if count < 0:
        raise context.findings.fail(f"{meaning} must be at least 0, found {count}", statement.count.span)
    outer = context.scope
    context.enter(statement.span)
    try:
        for number in range(count):
            findings_before = len(context.findings)
            with context.enter_scope(outer.iteration(number)):
                if statement.variable is not None:
                    context.check_new(statement.variable)
                    context.define(statement.variable, number)
                _lower_body(context, statement.body)
                collect_outputs(context)
            if len(context.findings) > findings_before:
                raise AlreadyReported  # the other iterations would report the same
            _count_steps(context, statement)
    finally:
        context.leave()


# -- calls and blocks -------------------------------------------------------------------------------------------------


def _apply_call(context: LoweringContext, call: EvaluatedCall) -> Value | MultipleResults:
    """The results of a call of a block or an operator."""
    name = call.function
    if name in context.blocks:
        return _apply_block(context, context.blocks[name], call)
    if registry.is_callable(name):
        return apply_operator(context, call)
    if name in constants.LIST_FUNCTIONS:
        raise context.findings.fail(f"'{name}' takes a list of numbers", call.syntax.span)
    if context.may_be_lost(name) or name in context.broken_blocks:
        raise AlreadyReported
    hint = FOREIGN_CALLS.get(name) or did_you_mean(
        name, [*registry.list_names(), *context.blocks, *constants.LIST_FUNCTIONS]
    )
    raise context.findings.fail(f"there is no operator or block '{name}'", call.syntax.span, hint)


def _declare_blocks(
    model: ast.ModelSyntax, parameters: Parameters, findings: Findings
) -> tuple[dict[str, ast.BlockDecl], frozenset[str]]:
    """The blocks of a model, which may stand in any order, and the names of those whose declaration is in error."""
    blocks: dict[str, ast.BlockDecl] = {}
    broken: set[str] = set()
    for block in model.statements:
        if not isinstance(block, ast.BlockDecl):
            continue
        name = block.name
        try:
            check_new_name(name, parameters.spans, findings)
            check_new_name(name, {other: declared.name.span for other, declared in blocks.items()}, findings)
            if registry.is_callable(name.text) or name.text in constants.LIST_FUNCTIONS:
                raise findings.fail(f"'{name.text}' is an operator of the library", name.span)
            spans: dict[str, SourceSpan] = {}
            for parameter in block.parameters:
                check_new_name(parameter, {**parameters.spans, **spans}, findings)
                spans[parameter.text] = parameter.span
            blocks[name.text] = block
        except AlreadyReported:
            broken.add(name.text)
    return blocks, frozenset(broken)


def _apply_block(context: LoweringContext, block: ast.BlockDecl, call: EvaluatedCall) -> Value | MultipleResults:
    name, findings = block.name.text, context.findings
    if name in context.active_blocks:
        circle = " -> ".join([*context.active_blocks[context.active_blocks.index(name) :], name][-8:])
        raise findings.fail(f"block '{name}' applies itself: {circle}", call.syntax.span)
    arguments = _bind_arguments(findings, block, call)
    if not block.body or not isinstance(block.body[-1], ast.ReturnStmt):
        raise findings.fail(f"block '{name}' does not end with 'return'", block.span, "end it with `return y`")
    label = _label_application(context, context.scope.full_name(name))
    context.active_blocks.append(name)
    try:
        with context.enter_statement(label), context.enter_scope(Scope(prefix=f"{label}.", is_block=True)):
            for parameter, value in zip(block.parameters, arguments, strict=True):
                context.define(parameter, value)
            _lower_body(context, block.body[:-1])
            _count_steps(context, block.body[-1])
            context.start_statement(f"{label}.return")
            return _evaluate_return(context, block.body[-1], call.result_names)
    finally:
        context.active_blocks.pop()


def _bind_arguments(findings: Findings, block: ast.BlockDecl, call: EvaluatedCall) -> list[Value]:
    """The arguments of a block in the order of its parameters."""
    names = [parameter.text for parameter in block.parameters]
    given: dict[str, Value] = dict(zip(names, call.arguments, strict=False))
    if len(call.arguments) > len(names):
        message = f"block '{call.function}' takes {format_count(len(names), 'argument')}, found {len(call.arguments)}"
        raise findings.fail(message, call.span_of(len(names)))
    for name, value in call.keywords.items():
        if name not in names:
            message = f"block '{call.function}' has no parameter '{name}'"
            raise findings.fail(message, call.span_of(name), did_you_mean(name, names))
        if name in given:
            raise findings.fail(f"parameter '{name}' is given twice", call.span_of(name))
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        message = f"block '{call.function}' needs an argument for '{missing[0]}'"
        raise findings.fail(message, call.syntax.span)
    return [given[name] for name in names]


def _label_application(context: LoweringContext, name: str) -> str:
    """A name in the graph for one application of a block, which no other application has."""
    label, number = name, 1
    while label in context.block_labels:
        number += 1
        label = f"{name}_{number}"
    context.block_labels.add(label)
    return label


def _evaluate_return(
    context: LoweringContext, statement: ast.ReturnStmt, result_names: tuple[str, ...]
) -> Value | MultipleResults:
    if len(statement.values) == 1:
        return evaluate_results(context, statement.values[0], result_names)
    names: Sequence[tuple[str, ...]] = [()] * len(statement.values)
    if len(result_names) == len(statement.values):
        names = [(name,) for name in result_names]
    values = zip(statement.values, names, strict=True)
    return MultipleResults(tuple(evaluate_value(context, value, name) for value, name in values))
