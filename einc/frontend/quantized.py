"""Quantized weights of a text: `weight w : f16[n, k] as i4(group=32) from "stored"`.

Such a weight is an ordinary tensor for everything that follows. In the graph, it is what `dequantize` makes of two or
three weights, which have its name with a part: `w.values`, `w.scales`, and `w.zeros` or `w.factor`.
"""

from __future__ import annotations

import re

from einc.core.tensor import TensorDesc
from einc.frontend import ast
from einc.frontend.assembly import apply_equation, declare_tensor
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue, evaluate_value
from einc.graph.graph import TensorKind
from einc.ops.dequantize import Dequantize, QuantizedForm
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.schema import NARROW_BLOCK
from einc_runtime.text import did_you_mean

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
