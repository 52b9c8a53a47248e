"""Quantized weights of a text: `weight w : f16[n, k] as i4(group=32) from "stored"`.

Such a weight is an ordinary tensor for everything that follows. In the graph, it is what `dequantize` makes of two or
three weights, which have its name with a part: `w.values`, `w.scales` and `w.zeros`.
"""

from __future__ import annotations

import re

from einc.core.tensor import DType, TensorDesc
from einc.frontend import ast
from einc.frontend.assembly import apply_equation, declare_tensor
from einc.frontend.context import LoweringContext
from einc.frontend.expressions import TensorValue, evaluate_value
from einc.graph.graph import TensorKind
from einc.ops.dequantize import INPUT_BITS, Dequantize, QuantizedForm
from einc_runtime.plan.schema import NARROW_BLOCK
from einc_runtime.text import did_you_mean

_STORAGES = {"i8": DType.I8, "i4": DType.I4X2, "f8e4m3": DType.F8E4M3, "f8e5m2": DType.F8E5M2}
_STORED_NAMES = {
    "plain": ("{}", "{}_scale", "{}_zero_point"),
    "gptq": ("gptq:{}.qweight", "gptq:{}.scales", "gptq:{}.qzeros"),
    "gptq_v2": ("gptq_v2:{}.qweight", "gptq_v2:{}.scales", "gptq_v2:{}.qzeros"),
    "awq": ("awq:{}.qweight", "awq:{}.scales", "awq:{}.qzeros"),
    "blocks": ("{}", "blocks:{}_scale", ""),
}
"""For each layout of files, the stored names of values, scales and zero points."""
_WEIGHT_PARTS = ("values", "scales", "zeros")
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
    parts = []
    for word, pattern, operand in zip(_WEIGHT_PARTS, _STORED_NAMES[layout], operands, strict=False):
        part_name = f"{name}.{word}"
        if part_name in context.declared:
            raise context.findings.fail(
                f"there is already a tensor '{part_name}'", statement.span, "rename one of the two"
            )
        file_name = pattern.format(base) + part
        parts.append(declare_tensor(context, TensorKind.WEIGHT, part_name, operand, file_name, statement.span))
    dtype = desc.dtype if form.storage.is_narrow_float else None
    widened = Dequantize(operands, form.group, rounds_inputs, dtype)
    return apply_equation(context, widened, parts, (name,), statement.span)


def _evaluate_storage(context: LoweringContext, storage: ast.Name | ast.CallExpr) -> tuple[QuantizedForm, str, bool]:
    """The form and the layout that stand after `as`, and whether what is multiplied with the weight is rounded."""
    fail = context.findings.fail
    word = storage.function if isinstance(storage, ast.CallExpr) else storage
    if word.text not in _STORAGES:
        raise fail(
            f"a weight cannot be stored as '{word.text}'", word.span, "it can be stored as i8, i4, f8e4m3 or f8e5m2"
        )
    options: dict[str, object] = {"group": 0, "zeros": False, "channels": -1, "layout": "plain", "inputs": 0}
    if isinstance(storage, ast.CallExpr):
        if storage.arguments:
            raise fail("options have names here", storage.arguments[0].span, "as in i4(group=32, zeros=true)")
        named: set[str] = set()
        for keyword in storage.keywords:
            name, value = keyword.name.text, evaluate_value(context, keyword.value)
            if name not in options:
                hint = did_you_mean(name, tuple(options)) or f"the options are {', '.join(options)}"
                raise fail(f"there is no option '{name}'", keyword.span, hint)
            if name in named:
                raise fail(f"argument '{name}' is given twice", keyword.span)
            if type(value) is not type(options[name]):
                kind = {
                    "group": "an integer",
                    "channels": "an integer",
                    "inputs": "an integer",
                    "zeros": "true or false",
                    "layout": "a string",
                }[name]
                raise fail(f"expected {kind} for '{name}'", keyword.value.span)
            named.add(name)
            options[name] = value
    layout = str(options["layout"])
    if layout not in _STORED_NAMES:
        raise fail(f"there is no layout '{layout[:40]}'", storage.span, f"the layouts are {', '.join(_STORED_NAMES)}")
    group, channels = options["group"], options["channels"]
    assert isinstance(group, int)
    assert isinstance(channels, int)
    zeros = options["zeros"] is True
    form = QuantizedForm(_STORAGES[word.text], group, zeros, None if channels == -1 else channels)
    layouts = ("plain", "blocks") if form.storage.is_narrow_float else ("plain", "gptq", "gptq_v2", "awq")
    if layout not in layouts or (layout == "blocks" and group != NARROW_BLOCK):
        hint = f"there are {', '.join(layouts)}; blocks have group={NARROW_BLOCK}"
        raise fail(f"values of {word.text} are not in the layout '{layout}'", storage.span, hint)
    if options["inputs"] not in (0, INPUT_BITS):
        raise fail(f"inputs cannot be rounded to {options['inputs']} bits", storage.span, f"{INPUT_BITS} are possible")
    if options["inputs"] and not form.can_round_inputs:
        hint = "inputs=8 is for i8 without groups and zero points"
        raise fail("products of this weight with rounded inputs are no sums of integers", storage.span, hint)
    return form, layout, options["inputs"] != 0
