"""From the syntax to the graph: declarations, assignments, blocks and repeats, in the order of the text.

Blocks and repeats are unrolled: each application adds its own weights and operators. A statement that fails is
reported and its names are poisoned. Reading a poisoned name is not reported again, so that one mistake is reported
once.

A quantized weight, `weight w : f16[n, k] as i4(group=32) from "stored"`, is an ordinary tensor for everything that
follows. In the graph, it is what `dequantize` makes of two or three weights, which have its name with a part:
`w.values`, `w.scales`, and `w.zeros` or `w.factor`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from einc.core.tensor import DType, TensorDesc
from einc.frontend import ast, limits
from einc.frontend.assembly import apply_equation, collect_outputs, declare_tensor, resolve_dtype, save_outputs
from einc.frontend.blocks import apply_call, declare_aggregates, declare_blocks
from einc.frontend.context import LoweringContext, is_recurrence
from einc.frontend.expressions import MultipleResults, TensorValue, evaluate_integer, evaluate_results, evaluate_value
from einc.frontend.findings import AlreadyReported, Findings
from einc.frontend.parameters import DTYPE_NAMES, Parameters
from einc.frontend.shared_blocks import load_used
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, TensorKind
from einc.ops.dequantize import Dequantize, QuantizedForm
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.schema import NARROW_BLOCK
from einc_runtime.text import did_you_mean, format_count

_KEYWORDS: dict[type[ast.Statement], str] = {
    ast.ModelDecl: "model", ast.ParamDecl: "param", ast.DimDecl: "dim", ast.BlockDecl: "block",
    ast.AggregateDecl: "aggregate", ast.PresetDecl: "preset", ast.InputDecl: "input", ast.StateDecl: "state",
    ast.UseStmt: "use",
}  # fmt: skip
"""Statements that may not stand everywhere, and the words that they start with."""


def lower_model(
    model: ast.ModelSyntax,
    file: str,
    name: str,
    parameters: Parameters,
    lost_names: frozenset[str],
    dtype: DType | None,
    findings: Findings,
) -> Graph:
    """The graph of a model, called `name`, as far as it could be built; `findings` tell whether it is complete.

    `file` is where the text lies. `lost_names` are the names in statements that could not be parsed. `dtype` replaces
    all floating element types.
    """
    blocks, broken_blocks = declare_blocks(model, parameters, findings)
    used = load_used(model, file, findings)
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
        used_blocks=used.blocks,
        aggregates=declare_aggregates(model, parameters, findings),
        used_aggregates=used.aggregates,
        apply_call=partial(apply_call, lower_body=lower_body),
    )
    lower_body(context, model.statements)
    collect_outputs(context)
    save_outputs(context)
    return context.builder.build()


def lower_body(context: LoweringContext, statements: Sequence[ast.Statement]) -> None:
    """Lowers the statements of a body. The `return` of a block is left to the caller."""
    for statement in statements:
        try:
            context.count_steps(statement)
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
        case ast.EquationStmt() if is_recurrence(context, statement):
            from einc.frontend.recurrences import lower_recurrence

            lower_recurrence(context, statement)
        case ast.ScanStmt():
            from einc.frontend.recurrences import lower_scan

            lower_scan(context, statement)
        case ast.EquationStmt():
            from einc.frontend.equations import lower_equations

            names = tuple(scope.full_name(name.text) for name in statement.names)
            context.start_statement(names[0])
            for target, value in zip(statement.names, lower_equations(context, statement, names), strict=True):
                context.define(target, value)
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
        case ast.IdentityStmt():
            raise context.findings.fail("'identity' is allowed in an aggregate only", statement.span)
        case _ if not at_top:
            message = f"'{_KEYWORDS[type(statement)]}' is not allowed in a block or repeat"
            raise context.findings.fail(message, statement.span)
        case _:
            pass  # params, dims, presets and blocks have been evaluated before


def _list_defined_names(statement: ast.Statement) -> tuple[ast.Name, ...]:
    """The tensors and values that a statement defines in the scope where it stands."""
    match statement:
        case ast.AssignStmt():
            return statement.targets
        case ast.EquationStmt():
            return statement.names
        case ast.InputDecl() | ast.WeightDecl() | ast.StateDecl():
            return (statement.name,)
        case ast.OutputStmt(definition=ast.AssignStmt() | ast.EquationStmt() as definition):
            return _list_defined_names(definition)
        case ast.RepeatStmt() | ast.ScanStmt():
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


def _evaluate_type(context: LoweringContext, dtype: ast.Name, items: Sequence[ast.IndexItem]) -> TensorDesc:
    """A declared type; all of its mistakes are reported. A number as an extent has a dimension named after it."""
    if dtype.text not in DTYPE_NAMES:
        hint = did_you_mean(dtype.text, DTYPE_NAMES) or f"the element types are {', '.join(DTYPE_NAMES)}"
        context.findings.add(f"there is no element type '{dtype.text}'", dtype.span, hint)
    names: list[str] = []
    extents: list[int] = []
    for item in items:
        if item.dimension is not None or item.extent is not None or item.value is None:
            context.findings.add("expected a dim or a number", item.span, "such as `f32[rows, 3]`")
        elif item.name is not None and item.name.text in context.parameters.dims:
            names.append(item.name.text)
            extents.append(context.parameters.dims[item.name.text])
        elif item.name is not None:
            _report_dim(context, item.name)
        else:
            extent = evaluate_integer(context, item.value, "an extent")
            if not 1 <= extent < limits.INTEGER_BOUND:
                raise context.findings.fail(f"an extent is at least 1, found {extent:,}", item.span)
            names.append(f"n{extent}")
            extents.append(extent)
    if dtype.text not in DTYPE_NAMES or len(names) < len(items):
        raise AlreadyReported
    return TensorDesc(tuple(names), tuple(extents), DType(resolve_dtype(context, dtype.text)))


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
                lower_body(context, statement.body)
                collect_outputs(context)
            if len(context.findings) > findings_before:
                raise AlreadyReported  # the other iterations would report the same
            context.count_steps(statement)
    finally:
        context.leave()


_STORED_NAMES = {
    "plain": ("{}", "{}_scale", "{}_zero_point"),
    "gptq": ("gptq:{}.qweight", "gptq:{}.scales", "gptq:{}.qzeros"),
    "gptq_v2": ("gptq_v2:{}.qweight", "gptq_v2:{}.scales", "gptq_v2:{}.qzeros"),
    "awq": ("awq:{}.qweight", "awq:{}.scales", "awq:{}.qzeros"),
    "blocks": ("{}", "blocks:{}_scale", ""),
    "packed": ("packed:{}_blocks", "{}_scales", ""),
}
"""For each layout of files, the stored names of values, scales and zero points."""
_INTEGER_LAYOUTS = ("plain", "gptq", "gptq_v2", "awq")
_FACTOR = ("factor", "inverse:{}_global_scale")
"""The name of a factor of a tensor in the graph, and in files."""
_ROW_RANGE = re.compile(r"(.+)(\[\d+:\d+\])")


def declare_quantized(
    context: LoweringContext, statement: ast.WeightDecl, desc: TensorDesc, stored: str | None
) -> TensorValue:
    """Declares the parts of a quantized weight, and returns the weight that they stand for."""
    assert statement.storage is not None
    form, layout, rounds_inputs = _evaluate_storage(context, statement.storage)
    with context.findings.locate_errors(statement.storage.span):
        operands = form.operands(desc)
    name = context.scope.full_name(statement.name.text)
    rows = _ROW_RANGE.fullmatch(stored or "")
    base, part = (rows[1], rows[2]) if rows else (stored or name, "")
    patterns = list(zip(("values", "scales", "zeros"), _STORED_NAMES[layout], strict=True))
    if form.stored.has_factor:
        patterns[2] = _FACTOR
    parts = []
    for (word, pattern), operand in zip(patterns, operands, strict=False):
        part_name = f"{name}.{word}"
        if part_name in context.declared:
            raise context.findings.fail(
                f"there is already a tensor '{part_name}'", statement.span, "rename one of the two"
            )
        file_name = pattern.format(base) + part * (operand.rank > 0)
        parts.append(declare_tensor(context, TensorKind.WEIGHT, part_name, operand, file_name, statement.span))
    dtype = desc.dtype if form.stored.is_float else None
    widened = Dequantize(operands, form.group, rounds_inputs, dtype)
    return apply_equation(context, widened, parts, (name,), statement.span)


def _evaluate_storage(context: LoweringContext, storage: ast.Name | ast.CallExpr) -> tuple[QuantizedForm, str, bool]:
    """The form and the layout that stand after `as`, and whether what is multiplied with the weight is rounded."""
    fail = context.findings.fail
    word = storage.function if isinstance(storage, ast.CallExpr) else storage
    stored = STORED_FORMS.get(word.text)
    if stored is None:
        names = ", ".join(STORED_FORMS)
        raise fail(f"a weight cannot be stored as '{word.text}'", word.span, f"it can be stored as one of {names}")
    options = _read_options(context, storage) if isinstance(storage, ast.CallExpr) else {}
    layout = str(options.get("layout", "plain"))
    if layout not in _STORED_NAMES:
        raise fail(f"there is no layout '{layout[:40]}'", storage.span, f"the layouts are {', '.join(_STORED_NAMES)}")
    group, channels, inputs = (options.get(name) for name in ("group", "channels", "inputs"))
    size = group if isinstance(group, int) else stored.group
    channel_dims = channels if isinstance(channels, int) and channels != -1 else None
    form = QuantizedForm(stored, size, options.get("zeros") is True, channel_dims)
    of_floats = ["plain", *["packed"] * (word.text == "mxfp4")] if stored.group else ["plain", "blocks"]
    layouts = of_floats if stored.is_float else list(_INTEGER_LAYOUTS)
    if layout not in layouts or (layout == "blocks" and size != NARROW_BLOCK):
        hint = f"there are {', '.join(layouts)}; blocks have group={NARROW_BLOCK}"
        raise fail(f"values of {word.text} are not in the layout '{layout}'", storage.span, hint)
    if inputs and inputs != stored.input_bits:
        raise fail(f"inputs cannot be rounded to {inputs} bits", storage.span, f"{stored.input_bits} are possible")
    if inputs and not form.can_round_inputs:
        hint = "of integers, inputs=8 is for i8 without groups and zero points"
        raise fail("products of this weight with rounded inputs are no sums of integers", storage.span, hint)
    return form, layout, bool(inputs)


_STORAGE_OPTIONS: dict[str, tuple[type, str]] = {
    "group": (int, "an integer"), "zeros": (bool, "true or false"), "channels": (int, "an integer"),
    "layout": (str, "a string"), "inputs": (int, "an integer"),
}  # fmt: skip
"""What may stand in parentheses, its type, and how messages call it."""


def _read_options(context: LoweringContext, storage: ast.CallExpr) -> dict[str, object]:
    fail = context.findings.fail
    if storage.arguments:
        raise fail("options have names here", storage.arguments[0].span, "as in i4(group=32, zeros=true)")
    options: dict[str, object] = {}
    for keyword in storage.keywords:
        name, value = keyword.name.text, evaluate_value(context, keyword.value)
        if name not in _STORAGE_OPTIONS:
            hint = did_you_mean(name, tuple(_STORAGE_OPTIONS)) or f"the options are {', '.join(_STORAGE_OPTIONS)}"
            raise fail(f"there is no option '{name}'", keyword.span, hint)
        if name in options:
            raise fail(f"argument '{name}' is given twice", keyword.span)
        kind, described = _STORAGE_OPTIONS[name]
        if type(value) is not kind:
            raise fail(f"expected {described} for '{name}'", keyword.value.span)
        options[name] = value
    return options
