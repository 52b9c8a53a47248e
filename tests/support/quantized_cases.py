"""Operators that read quantized weights in every form: i8 and i4, by channel and in groups, with zero points or not."""

from __future__ import annotations

from einc.core.tensor import DType, TensorDesc, TensorType
from einc.ops.base import Operator
from einc.ops.dequantize import Dequantize, QuantizedForm
from einc.ops.equation import build_equation
from einc.ops.quantized_product import QuantizedProduct
from einc.ops.rounded_product import make_rounded_product
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.scalar_programs import ScalarProgram

FORMS = {
    "i8": QuantizedForm(STORED_FORMS["i8"]),
    "i8_zeros": QuantizedForm(STORED_FORMS["i8"], zeros=True),
    "i8_groups": QuantizedForm(STORED_FORMS["i8"], 32),
    "i4": QuantizedForm(STORED_FORMS["i4"]),
    "i4_groups": QuantizedForm(STORED_FORMS["i4"], 32),
    "i4_groups_zeros": QuantizedForm(STORED_FORMS["i4"], 32, zeros=True),
    "f8": QuantizedForm(STORED_FORMS["f8e4m3"]),
    "f8_groups": QuantizedForm(STORED_FORMS["f8e4m3"], 32),
    "mxfp8": QuantizedForm(STORED_FORMS["mxfp8"], 32),
    "mxfp4": QuantizedForm(STORED_FORMS["mxfp4"], 32),
    "nvfp4": QuantizedForm(STORED_FORMS["nvfp4"], 16),
    "f8_tensor": QuantizedForm(STORED_FORMS["f8e5m2"], channels=0),
}
CHANNELS = QuantizedForm(STORED_FORMS["i8"], channels=1)


def widen(form: QuantizedForm, weight: TensorDesc) -> Dequantize:
    """What makes a weight of what is stored of it."""
    dtype = weight.dtype if form.stored.is_float else None
    return Dequantize(form.operands(weight), form.group, dtype=dtype)


def make_product(
    form: QuantizedForm, weight: TensorDesc, tensor: TensorDesc, indices: str, *, windows: tuple[TensorType, ...] = ()
) -> Operator:
    """The product that fusion makes of a contraction with a widened weight: "t k, n k -> t n" are its indices."""
    left, _, right = indices.partition("->")
    labels = [tuple(part.split()) for part in left.split(",")]
    program = ScalarProgram.parse("t0 = mul x0 x1", 2)
    result = [(name, name) for name in right.split()]
    inputs = list(zip((tensor, weight), labels, strict=True))
    contraction = build_equation(inputs, result, program, "sum", windows)
    fused = contraction.fuse(1, widen(form, weight))
    assert isinstance(fused, QuantizedProduct)
    return fused


def make_rounded(
    weight: TensorDesc,
    tensor: TensorDesc,
    indices: str,
    *,
    form: QuantizedForm = FORMS["i8"],
    windows: tuple[TensorType, ...] = (),
) -> Operator:
    """The product that rounds its tensor in place of that which does not."""
    plain = make_product(form, weight, tensor, indices, windows=windows)
    assert isinstance(plain, QuantizedProduct)
    rounded = make_rounded_product(plain)
    assert rounded is not None
    return rounded


def quantized(dtype: DType) -> dict[str, Operator]:
    """Rows of uneven number, groups that a number of sites does not divide."""
    operators: dict[str, Operator] = {}
    weight, tensor = TensorDesc(("n", "k"), (7, 96), dtype), TensorDesc(("t", "k"), (5, 96), dtype)
    for name, form in FORMS.items():
        if form.stored.is_float and dtype is DType.F64:
            continue  # computed in f32 alone
        operators[f"dequantize_{name}"] = widen(form, weight)
        operators[f"product_{name}"] = make_product(form, weight, tensor, "t k, n k -> t n")
    groups, zeros = FORMS["i4_groups"], FORMS["i4_groups_zeros"]
    heads = TensorDesc(("j", "h", "d"), (5, 3, 64), dtype)
    operators["product_two_summed"] = make_product(
        groups, heads, TensorDesc(("h", "t", "d"), (3, 4, 64), dtype), "h t d, j h d -> t j"
    )
    operators["product_channels"] = make_product(
        QuantizedForm(STORED_FORMS["i8"], channels=1),
        heads,
        TensorDesc(("h", "t", "d"), (3, 4, 64), dtype),
        "h t d, j h d -> j t",
    )
    operators["dequantize_channels"] = Dequantize(
        QuantizedForm(STORED_FORMS["i4"], zeros=True, channels=1).operands(heads), 0
    )
    experts = TensorDesc(("e", "f", "k"), (3, 5, 64), dtype)
    operators["product_batch"] = make_product(
        zeros, experts, TensorDesc(("t", "e", "k"), (4, 3, 64), dtype), "t e k, e f k -> e t f"
    )
    operators["product_heads"] = make_product(FORMS["i8"], experts, TensorDesc(("k",), (64,), dtype), "k, e f k -> f e")
    operators["product_odd"] = make_product(
        FORMS["i4"], TensorDesc(("n", "k"), (3, 22), dtype), TensorDesc(("t", "k"), (2, 22), dtype), "t k, n k -> n t"
    )
    windows = (TensorType((1, 32), (4, 96)), TensorType((2, 0), (7, 64)))
    operators["product_parts"] = make_product(zeros, weight, tensor, "t k, n k -> t n", windows=windows)
    operators["rounded"] = operators["rounded_any"] = make_rounded(weight, tensor, "t k, n k -> t n")
    operators["rounded_two_summed"] = make_rounded(
        heads, TensorDesc(("h", "t", "d"), (3, 4, 64), dtype), "h t d, j h d -> j t", form=CHANNELS
    )
    operators["rounded_batch"] = make_rounded(
        experts, TensorDesc(("t", "e", "k"), (4, 3, 64), dtype), "t e k, e f k -> e t f", form=CHANNELS
    )
    for name in ("f8", "f8_groups", "mxfp8", "mxfp4", "nvfp4") if dtype is not DType.F64 else ():
        operators[f"rounded_{name}"] = make_rounded(weight, tensor, "t k, n k -> t n", form=FORMS[name])
    if dtype is not DType.F64:
        operators["rounded_f8_heads"] = make_rounded(
            heads, TensorDesc(("h", "t", "d"), (3, 4, 64), dtype), "h t d, j h d -> j t", form=FORMS["nvfp4"]
        )
    operators["rounded_parts"] = make_rounded(weight, tensor, "t k, n k -> t n", windows=windows)
    return operators
