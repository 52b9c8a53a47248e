"""Calls: of operators, of functions of shapes, and of blocks, those of the model, of files it uses, and of the library.

A block of another text sees no names of the model. Blocks of a file that is used may call each other, and all may call
those of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from einc.errors import SourceSpan
from einc.frontend import ast, constants
from einc.frontend.assembly import apply_operator
from einc.frontend.context import LoweringContext, Scope
from einc.frontend.expressions import (
    EvaluatedCall,
    MultipleResults,
    TensorValue,
    Value,
    evaluate_results,
    evaluate_value,
)
from einc.frontend.findings import FOREIGN_CALLS, AlreadyReported, Findings
from einc.frontend.parameters import Parameters, check_new_name
from einc.frontend.shared_blocks import BlockOrigin, find_library_block, list_library
from einc.ops import registry
from einc.ops.functions import AGGREGATIONS
from einc_runtime.text import did_you_mean, format_count

LowerBody = Callable[[LoweringContext, Sequence[ast.Statement]], None]
"""Lowers the statements of a block but for its `return`."""

SHAPE_FUNCTIONS = ("extent", "rank", "dimension", "element_type")
"""The functions whose results are known of a tensor without its data."""


def apply_call(context: LoweringContext, call: EvaluatedCall, lower_body: LowerBody) -> Value | MultipleResults:
    """The results of a call of a block, an operator or a function of shapes."""
    name, origin = call.function, context.origin
    if origin is BlockOrigin.MODEL and name in context.blocks:
        return _apply_block(context, context.blocks[name], origin, call, lower_body)
    if origin is not BlockOrigin.LIBRARY and name in context.used_blocks:
        return _apply_block(context, context.used_blocks[name], BlockOrigin.USED, call, lower_body)
    if registry.is_callable(name):
        return apply_operator(context, call)
    if name in SHAPE_FUNCTIONS:
        return _evaluate_shape(context, call)
    shared = find_library_block(name)
    if shared is not None:
        return _apply_block(context, shared, BlockOrigin.LIBRARY, call, lower_body)
    if registry.is_custom(name):
        return apply_operator(context, call)
    if name in constants.LIST_FUNCTIONS:
        raise context.findings.fail(f"'{name}' takes a list of numbers", call.syntax.span)
    if context.may_be_lost(name) or name in context.broken_blocks:
        raise AlreadyReported
    known = [
        *registry.list_names(),
        *registry.list_custom_names(),
        *context.blocks,
        *context.used_blocks,
        *constants.LIST_FUNCTIONS,
    ]
    hint = FOREIGN_CALLS.get(name) or did_you_mean(name, [*known, *SHAPE_FUNCTIONS, *list_library()])
    hint = hint or "`einc library list` names definitions; a package that defines the operator must be installed"
    raise context.findings.fail(f"there is no operator or block '{name}'", call.syntax.span, hint)


def _evaluate_shape(context: LoweringContext, call: EvaluatedCall) -> Value:
    """`extent(x, 1)`, `extent(x, "rows")`, `rank(x)`, `dimension(x, 1)` or `element_type(x)`."""
    name = call.function
    count = 1 if name in ("rank", "element_type") else 2
    if len(call.arguments) != count or call.keywords or not isinstance(call.arguments[0], TensorValue):
        usage = {"extent": "a tensor and a dimension", "dimension": "a tensor and a position"}
        raise context.findings.fail(f"{name} takes {usage.get(name, 'a tensor')}", call.syntax.span)
    desc = call.arguments[0].desc
    if name in ("rank", "element_type"):
        return desc.rank if name == "rank" else desc.dtype.value
    dimension = call.arguments[1]
    if isinstance(dimension, str) and name == "extent":
        if dimension not in desc.dims:
            hint = did_you_mean(dimension, desc.dims)
            raise context.findings.fail(f"{desc} has no dimension '{dimension}'", call.span_of(1), hint)
        dimension = desc.dims.index(dimension)
    if isinstance(dimension, bool) or not isinstance(dimension, int) or not -desc.rank <= dimension < desc.rank:
        described = "a tensor" if isinstance(dimension, TensorValue) else constants.describe_value(dimension)
        raise context.findings.fail(f"expected a dimension of {desc}, found {described}", call.span_of(1))
    return desc.shape[dimension] if name == "extent" else desc.dims[dimension]


def declare_blocks(
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
            check_new_name(name, {earlier: declared.name.span for earlier, declared in blocks.items()}, findings)
            if registry.is_callable(name.text) or name.text in (*constants.LIST_FUNCTIONS, *SHAPE_FUNCTIONS):
                raise findings.fail(f"'{name.text}' is an operator of the library", name.span)
            spans: dict[str, SourceSpan] = {}
            for parameter in block.parameters:
                check_new_name(parameter.name, {**parameters.spans, **spans}, findings)
                spans[parameter.name.text] = parameter.span
            blocks[name.text] = block
        except AlreadyReported:
            broken.add(name.text)
    return blocks, frozenset(broken)


def declare_aggregates(
    model: ast.ModelSyntax, parameters: Parameters, findings: Findings
) -> dict[str, ast.AggregateDecl]:
    """The aggregations that a model defines, which may stand in any order."""
    aggregates: dict[str, ast.AggregateDecl] = {}
    for declared in model.statements:
        if not isinstance(declared, ast.AggregateDecl):
            continue
        name = declared.name
        with suppress(AlreadyReported):
            check_new_name(name, parameters.spans, findings)
            check_new_name(name, {earlier: known.name.span for earlier, known in aggregates.items()}, findings)
            if name.text in AGGREGATIONS:
                raise findings.fail(f"'{name.text}' is an aggregation of the language", name.span)
            aggregates[name.text] = declared
    return aggregates


def _apply_block(
    context: LoweringContext, block: ast.BlockDecl, origin: BlockOrigin, call: EvaluatedCall, lower_body: LowerBody
) -> Value | MultipleResults:
    name, findings = block.name.text, context.findings
    if name in context.active_blocks:
        circle = " -> ".join([*context.active_blocks[context.active_blocks.index(name) :], name][-8:])
        raise findings.fail(f"block '{name}' applies itself: {circle}", call.syntax.span)
    arguments = _bind_arguments(findings, block, call)
    if not block.body or not isinstance(block.body[-1], ast.ReturnStmt):
        raise findings.fail(f"block '{name}' does not end with 'return'", block.span, "end it with `return y`")
    label = _label_application(context, context.scope.full_name(name))
    is_outermost = origin is BlockOrigin.LIBRARY and context.origin is not BlockOrigin.LIBRARY
    before = len(findings)
    context.active_blocks.append(name)
    try:
        with (
            context.enter_statement(label),
            context.enter_origin(origin),
            context.enter_scope(Scope(prefix=f"{label}.", is_block=True)),
        ):
            for parameter in block.parameters:
                value = arguments.get(parameter.name.text)
                if value is None:
                    assert parameter.default is not None
                    value = evaluate_value(context, parameter.default)
                context.define(parameter.name, value)
            lower_body(context, block.body[:-1])
            context.count_steps(block.body[-1])
            context.start_statement(f"{label}.return")
            results = _evaluate_return(context, block.body[-1], call.result_names)
            if origin is BlockOrigin.LIBRARY and isinstance(results, MultipleResults):
                return replace(results, first_stands_for_all=True)
            return results
    except AlreadyReported:
        if is_outermost:  # what is wrong is how it is called: a text that comes with einc is right
            findings.move(before, call.syntax.span, name)
        raise
    finally:
        context.active_blocks.pop()


def _bind_arguments(findings: Findings, block: ast.BlockDecl, call: EvaluatedCall) -> dict[str, Value]:
    """The arguments of a block by the names of its parameters; those that have a default may be missing."""
    names = [parameter.name.text for parameter in block.parameters]
    bound: dict[str, Value] = dict(zip(names, call.arguments, strict=False))
    if len(call.arguments) > len(names):
        message = f"block '{call.function}' takes {format_count(len(names), 'argument')}, found {len(call.arguments)}"
        raise findings.fail(message, call.span_of(len(names)))
    for name, value in call.keywords.items():
        if name not in names:
            message = f"block '{call.function}' has no parameter '{name}'"
            raise findings.fail(message, call.span_of(name), did_you_mean(name, names))
        if name in bound:
            raise findings.fail(f"parameter '{name}' is given twice", call.span_of(name))
        bound[name] = value
    missing = [p.name.text for p in block.parameters if p.default is None and p.name.text not in bound]
    if missing:
        message = f"block '{call.function}' needs an argument for '{missing[0]}'"
        raise findings.fail(message, call.syntax.span)
    return bound


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
    names = [*((name,) for name in result_names), *[()] * len(statement.values)]
    values = zip(statement.values, names, strict=False)
    return MultipleResults(tuple(evaluate_value(context, value, name) for value, name in values))
