"""Operations whose attributes or tensors are not those of their family, one lie at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.operations import FAMILIES, require_blocks, require_labels
from einc_runtime.plan.meaning.terms import Application, OperatorMeaning, TensorForm
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import Block, Bundle
from tests.support.handmade_plans import two_site_plan


def form(*shape: int, dtype: str = "f32") -> TensorForm:
    return TensorForm(tuple("abcdefgh"[: len(shape)]), shape, dtype)  # type: ignore[arg-type]


def whole(*shape: int) -> TensorForm:
    return form(*shape, dtype="i64")


def values(*shape: int, dtype: str = "i4x2") -> TensorForm:
    return form(*shape, dtype=dtype)


def flags(*shape: int) -> TensorForm:
    return form(*shape, dtype="bool")


X = form(6, 4)
ROPE = {"theta": 5.0, "scaling": "none", "seq_lens": [2, 4]}
LLAMA3 = {"scaling": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 16.0}
SEEN = {"causal": True, "scale": 0.5, "q_lens": [2, 3], "k_lens": [3, 4], "window": 0, "extras": []}
EQUATION = {"indices": "i j, j k -> i k", "dims": ["a", "b"], "program": "t0 = mul x0 x1", "aggregation": "sum"}
QUANTIZED = {"indices": "t k, n k -> t n", "dims": ["a", "b"], "group": 32, "factor": 1.0}
ROUNDED = {"indices": "t k, n k -> t n", "dims": ["a", "b"], "factor": 1.0}
MAP = {"indices": "i j -> i j", "dims": ["a", "b"], "program": "t0 = relu x0", "aggregation": ""}

CONVOLUTION = {
    "loops": "n=2 o=4 t=7 c=3 r=3", "kept": 3, "reads": "0[n, c, t+r-1 | 0]; 1[o, c, r]", "program": "t0 = mul x0 x1",
    "aggregation": "sum", "dims": ["n", "o", "t"],
}  # fmt: skip
GATHER = {
    "loops": "t=5 d=4", "kept": 2, "reads": "0[@1, d]; 1[t]", "program": "t0 = copy x0", "aggregation": "",
    "dims": ["t", "d"],
}  # fmt: skip
FOLD = {
    "loops": "i=6 j=4", "kept": 1, "reads": "0[i, j]; #j", "program": "t0 = copy x0; t1 = copy x1",
    "aggregation": "low commutative exact [inf 9]: t0 = lt x0 x2; t1 = min x0 x2; t2 = where t0 x1 x3", "dims": ["i"],
}  # fmt: skip
SCAN = {
    "loops": "t=6 d=4 n=3", "equations": ["f32[t, d, n] | 2[d]", "f32[t, d]"],
    "reads": ["0[t, d]; @0[t-1, d, n]; 1[t, n]", "@0[t, d, n]; 0[t, d]"],
    "programs": ["t0 = mul x0 x1; t1 = add t0 x2", "t0 = mul x0 x1"], "aggregations": ["", "sum"], "results": [1],
    "dims": ["t", "d"],
}  # fmt: skip
EXPERTS = {
    "loops": "t=6 s=2 n=5 k=4", "kept": 3, "reads": "1[@2, n, k]; 0[t, k]; 2[t, s]", "program": "t0 = mul x0 x1",
    "aggregation": "sum", "dims": ["t", "s", "n"],
}  # fmt: skip
CUSTOM = {
    "operator": "energy", "signature": "x: float[..., n], w: float[n] -> y[...]", "uncut": [], "aggregation": "sum",
    "operations": 2.0, "settings": "{}",
}  # fmt: skip

GOOD: dict[str, tuple[str, list[TensorForm], dict[str, Any]]] = {
    "append": ("append", [form(2, 9, 4), form(2, 5, 4), whole(5)], {"cache_lens": [3, 6], "new_lens": [3, 2]}),
    "attention": ("attention", [form(4, 5, 2), form(2, 7, 2), form(2, 7, 3)], SEEN),
    "attention with a cap": ("attention", [form(4, 5, 2), form(2, 7, 2), form(2, 7, 3)], {**SEEN, "softcap": 9.0}),
    "attention with all": (
        "attention",
        [form(4, 5, 2), form(2, 7, 2), form(2, 7, 3), whole(5), flags(7)],
        {**SEEN, "extras": ["positions", "mask"]},
    ),
    "attention over blocks": (
        "attention",
        [form(4, 5, 2), form(2, 12, 2), form(2, 12, 3), whole(5), whole(2, 3)],
        {**SEEN, "k_lens": [9, 9], "extras": ["positions", "blocks"]},
    ),
    "convolution": ("index", [form(2, 3, 7), form(4, 3, 3)], CONVOLUTION),
    "gather": ("index", [form(9, 4), whole(5)], GATHER),
    "fold": ("index", [X], FOLD),
    "recurrence": ("recurrence", [X, form(6, 3), form(4)], SCAN),
    "custom": ("custom", [X, form(4)], CUSTOM),
    "custom with sizes": (
        "custom",
        [X],
        {**CUSTOM, "signature": "x: number[a, b] -> y: i64[a, k], z[]", "uncut": ["b"], "settings": '{"k": 3}'},
    ),
    "experts": ("index", [X, form(3, 5, 4), whole(6, 2)], EXPERTS),
    "product": ("equation", [X, form(4, 3)], EQUATION),
    "map": ("equation", [X], MAP),
    "window": ("equation", [X, form(4, 4)], {**EQUATION, "windows": "0:3 1:3, 2:4 0:4"}),
    "half a window": ("equation", [X, form(2, 3)], {**EQUATION, "windows": "0:3 1:3, -"}),
    "scalars": ("equation", [form(), X], {**MAP, "indices": ", i j -> i j", "program": "t0 = add x0 x1"}),
    "rmsnorm": ("rows", [X, form(4)], {"kind": "rmsnorm", "axis": 1, "eps": 0.1}),
    "layernorm": ("rows", [X, form(4), form(4)], {"kind": "layernorm", "axis": 1, "eps": 0.1, "offset": -1.0}),
    "dequantize": ("dequantize", [values(6, 48), form(6, 3)], {"group": 32}),
    "dequantize rows": ("dequantize", [values(6, 48, dtype="i8"), form(6), values(6, dtype="i8")], {"group": 0}),
    "quantized": ("quantized_product", [form(5, 96), values(6, 48), form(6, 3)], QUANTIZED),
    "scaled": ("quantized_product", [form(5, 96), values(6, 48), form(6, 3)], {**QUANTIZED, "factor": 0.5}),
    "quantized part": (
        "quantized_product",
        [form(5, 96), values(6, 64), form(6, 4), values(6, 4, dtype="i8")],
        {**QUANTIZED, "windows": "-, 0:6 32:128"},
    ),
    "quantized experts": (
        "quantized_experts",
        [form(5, 96), values(3, 7, 48), form(3, 7, 3), values(3, 7, 3, dtype="i8"), whole(5, 2)],
        {"group": 32, "dims": ["t", "s", "n"]},
    ),
    "rounded": ("rounded_product", [form(5, 96), form(5), values(6, 96, dtype="i8"), form(6)], ROUNDED),
    "rounded part": (
        "rounded_product",
        [form(5, 96), form(3), values(6, 128, dtype="i8"), form()],
        {**ROUNDED, "factor": 0.5, "windows": "1:4 0:64, 0:6 32:96"},
    ),
    "reshape": ("reshape", [X], {"dims": ["a", "b", "c"], "shape": [2, 3, 4]}),
    "rope": ("rope", [X], ROPE),
    "rope at": ("rope", [X, whole(6)], {"theta": 5.0, "scaling": "linear", "factor": 2.0, "extras": ["positions"]}),
    "llama3": ("rope", [X], {**ROPE, **LLAMA3}),
    "longrope": ("rope", [X], {**ROPE, "scaling": "longrope", "factors": [1.0, 2.0]}),
    "softmax": ("rows", [X], {"kind": "softmax", "axis": 0}),
    "topk": ("topk", [X], {"axis": 1, "count": 3, "into": "k"}),
}

F16 = "f16"
LIES: list[tuple[str, dict[str, Any], str]] = [
    # the good one, what is changed (a number: an input; a name: an attribute; None: it is gone), a piece of the message
    ("softmax", {"axis": None}, "the attribute 'axis' is missing"),
    ("fold", {"aggregation": "low [inf 9]: t0 = min x0 x2"}, "an aggregation of 2 values has 1 results"),
    ("fold", {"aggregation": "low [9]: t0 = mul x0 x1; t1 = sqrt t0"}, "sqrt does not take i64"),
    ("fold", {"aggregation": "low [inf 0.5]: t0 = min x0 x2; t1 = min x1 x3"}, "its identity 0.5 is no i64"),
    ("fold", {"aggregation": "low [inf x]: t0 = min x0 x2; t1 = min x1 x3"}, "has 'x', which is no number"),
    ("fold", {"aggregation": "low  exact [inf 9]: t0 = min x0 x2; t1 = min x1 x3"}, "no head of a definition"),
    ("fold", {"aggregation": "low [inf 9]: t0 = min x0 x4; t1 = min x1 x3"}, "'x4' is no operand"),
    ("fold", {"aggregation": "low [inf 09]: t0 = min x0 x2; t1 = min x1 x3"}, "not in canonical form"),
    ("fold", {"aggregation": "low [inf 9]: t0 = min x1 x3; t1 = min x1 x3"}, "value 1 is f32, and combined i64"),
    ("fold", {"aggregation": f"low [{' '.join('0' * 9)}]: t0 = min x0 x2"}, "an aggregation of 9 values"),
    ("fold", {"program": "t0 = copy x0"}, "1 values for low"),
    ("fold", {"kept": 2, "dims": ["i", "j"]}, "nothing is aggregated over"),
    ("recurrence", {"loops": "t=6 d=4 n=2"}, "of an operand of shape (6, 3)"),
    ("recurrence", {"loops": "t=6 d=4 n=3 e=2"}, "a loop has no use"),
    ("recurrence", {"loops": "t=6 d=900000000 n=3"}, "too many index vectors"),
    ("recurrence", {"loops": ""}, "it has no loop"),
    ("recurrence", {"equations": ["f32[t, d, n] | 2[n]", "f32[t, d]"]}, "2[n] of an operand of shape (4,)"),
    ("recurrence", {"equations": ["f32[t, d, n] | 2[t]", "f32[t, d]"]}, "no element before the first step"),
    ("recurrence", {"equations": ["f32[t, d, n] | true", "f32[t, d]"]}, "2 operands are read of 3"),
    ("recurrence", {"equations": ["f32[t, d, n]", "f32[t, d]"]}, "is read before the first step"),
    ("recurrence", {"equations": ["f64[t, d, n] | 2[d]", "f32[t, d]"]}, "step 0 of a scalar program"),
    ("recurrence", {"equations": ["f32[t, d, n] | 2[d]", "f32[t]"]}, "2 names for 1 dimensions"),
    ("recurrence", {"equations": ["f32[t, d, n] | 2[d]", "f32[d]"]}, "does not run along 't'"),
    ("recurrence", {"equations": ["f32[t, d, n] | 2[d]"]}, "1 equations"),
    ("recurrence", {"reads": ["0[t, d]; @0[t-1, d, n]; 1[t, n]", "@1[t, d]; 0[t, d]"]}, "not known at this step yet"),
    ("recurrence", {"reads": ["0[t, d]; @0[t-1, n, d]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "does not fit the value"),
    ("recurrence", {"reads": ["0[t, d]; @0[t-2, d, n]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "'t-2' is no loop"),
    ("recurrence", {"reads": ["0[t, d]; @0[t, d, n]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "not known at this step yet"),
    ("recurrence", {"reads": ["0[t, d]; 0[t, d]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "is read before the first step"),
    ("recurrence", {"reads": ["0[t, d]; @9[t-1, d, n]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "of 2 equations"),
    ("recurrence", {"reads": ["0[t, d],@0[t-1, d, n]; 1[t, n]", "@0[t, d, n]; 0[t, d]"]}, "is no read"),
    ("recurrence", {"programs": ["t0 = mul x0 x1; t1 = lt t0 x2", "t0 = mul x0 x1"]}, "results in bool"),
    ("recurrence", {"programs": ["t0 = mul x0 x1; t1 = add t0 x2", "t0 = mul x0 x2"]}, "no operand"),
    ("recurrence", {"aggregations": ["", "mean"]}, "aggregation 'mean'"),
    ("recurrence", {"aggregations": ["sum", "sum"]}, "over 0 loops"),
    ("recurrence", {"results": [0]}, "an equation has no use"),
    ("recurrence", {"results": [1, 0]}, "its results are [1, 0]"),
    ("recurrence", {"results": [2]}, "its results are [2]"),
    ("recurrence", {"dims": ["t"]}, "1 names for 2 dimensions"),
    ("custom", {"signature": "x: float[..., n],w: float[n] -> y[...]"}, "not in canonical form"),
    ("custom", {"signature": "x: float[..., n] -> y[...]"}, "it takes 1 tensor, not 2"),
    ("custom", {"signature": "x: float[n], w: float[n] -> y[n]"}, "its operand x: float[n] is f32[a=6, b=4]"),
    ("custom", {"1": form(5)}, "'n' is 4, and 5 in its operand w: float[n]"),
    ("custom", {"1": whole(4)}, "its operand w: float[n] is i64[a=4]"),
    ("custom", {"aggregation": "mean"}, "no aggregation 'mean'"),
    ("custom", {"operations": -1.0}, "'operations' is -1.0"),
    ("custom", {"operations": 1}, "should be float"),
    ("custom", {"settings": "{"}, "settings of a custom operator: not JSON"),
    ("custom", {"settings": "[]"}, "its settings are no object"),
    ("custom", {"settings": '{"k": [[1]]}'}, "its settings are nested"),
    ("custom", {"settings": '{"k":1}'}, "its settings are not in canonical form"),
    ("custom with sizes", {"settings": "{}"}, "the setting 'k' is an extent"),
    ("custom with sizes", {"settings": '{"k": true}'}, "the setting 'k' is an extent"),
    ("custom with sizes", {"uncut": "b"}, "should be a list of str"),
    ("dequantize", {"group": 16}, "groups of 16 in 96 elements"),
    ("dequantize", {"group": -32}, "no values and scales"),
    ("dequantize", {"group": 64}, "groups of 64 in 96 elements"),
    ("dequantize", {"1": None}, "no values and scales"),
    ("dequantize", {"1": form(6)}, "with f32[a=6]"),
    ("dequantize", {"1": values(6, 3, dtype="i8")}, "of i4x2[a=6, b=48] with i8"),
    ("dequantize", {"0": form(6, 96)}, "of f32[a=6, b=96] with"),
    ("dequantize", {"0": values()}, "no values and scales"),
    ("dequantize rows", {"2": form(6)}, "with f32[a=6], f32[a=6]"),
    ("dequantize rows", {"2": values(5, dtype="i8")}, "i8[a=5]"),
    ("quantized", {"0": form(5, 96, dtype="f16")}, "of f16[a=5, b=96] and f32"),
    ("quantized", {"indices": "t k -> t"}, "indices do not fit"),
    ("quantized", {"indices": "t k, n k n -> t n"}, "for 2 dimensions"),
    ("quantized", {"indices": "k k, n k -> n k", "0": form(96, 96)}, "twice in an operand"),
    ("quantized", {"indices": "k t, n k -> t n"}, "index k has two extents"),
    ("quantized", {"indices": "t k, n k -> t t"}, "occurs twice in the result"),
    ("quantized", {"indices": "t k, n k -> k n"}, "the summed indices are not"),
    ("quantized", {"indices": "t k, n k -> k t", "0": form(6, 96)}, "the summed indices are not"),
    ("quantized", {"factor": float("nan")}, "the factor is nan"),
    ("quantized", {"factor": 1}, "should be float"),
    ("quantized part", {"windows": "-, 0:6 16:112"}, "a window cuts a group"),
    ("quantized part", {"windows": "-, 0:6 32:64"}, "index k has two extents"),
    ("quantized experts", {"3": None, "4": None}, "4 inputs at least, found 3"),
    ("quantized experts", {"0": form(5, 2, 90)}, "of f32[a=5, b=2, c=90] and f32[a=3, b=7, c=96]"),
    ("quantized experts", {"0": form(4, 96)}, "of f32[a=4, b=96] and"),
    ("quantized experts", {"0": form(5, 96, dtype="f16")}, "of f16[a=5, b=96] and"),
    ("quantized experts", {"4": form(5, 2)}, "picked by f32[a=5, b=2]"),
    ("quantized experts", {"4": whole(5)}, "picked by i64[a=5]"),
    ("quantized experts", {"1": values(3, 48), "2": form(3, 3), "3": values(3, 3, dtype="i8")}, "f32[a=3, b=96]"),
    ("quantized experts", {"dims": ["t", "n"]}, "picked by"),
    ("quantized experts", {"group": 64}, "groups of 64 in 96 elements"),
    ("quantized experts", {"factor": 2.0}, "it has no attribute 'factor'"),
    ("rounded", {"3": None}, "there are no values and scales"),
    ("rounded", {"group": 0}, "groups of 0"),
    ("rounded", {"2": values(6, 48)}, "of i4x2[a=6, b=48]"),
    ("rounded", {"1": form(6)}, "of f32[a=6], where rows are f32[a=5]"),
    ("rounded", {"1": form(5, dtype="f16")}, "of f16[a=5], where rows are f32[a=5]"),
    ("rounded", {"1": form()}, "of f32[], where rows are f32[a=5]"),
    ("rounded", {"3": form(6, 96)}, "f32[a=6, b=96]"),
    (
        "rounded",
        {"indices": "k l, n k l -> n", "dims": ["a"], "2": values(6, 5, 96, dtype="i8"), "3": form(6, 5), "1": form()},
        "of scales f32[a=6, b=5], of which a dimension is summed",
    ),
    (
        "rounded",
        {"0": form(5, 1 << 18), "2": values(6, 1 << 18, dtype="i8")},
        "262144 products are summed; at most 131072 fit into 32 bits",
    ),
    ("rounded part", {"1": form(5)}, "of f32[a=5], where rows are f32[a=3]"),
    ("softmax", {"speed": 1}, "it has no attribute 'speed'"),
    ("softmax", {"axis": True}, "should be int"),
    ("softmax", {"axis": 2}, "axis 2 of a tensor of 2 dimensions"),
    ("softmax", {"axis": -1}, "axis -1"),
    ("softmax", {"1": X}, "it has 1 inputs, found 2"),
    ("softmax", {"0": whole(6, 4)}, "of i64"),
    ("rmsnorm", {"kind": "norm"}, "there is no kind 'norm'"),
    ("rmsnorm", {"kind": "softmax"}, "it has 1 inputs, found 2"),
    ("rmsnorm", {"eps": 0.0}, "'eps' is 0.0"),
    ("rmsnorm", {"eps": float("inf")}, "'eps' is inf"),
    ("rmsnorm", {"eps": 1}, "should be float"),
    ("rmsnorm", {"0": whole(6, 4)}, "of i64"),
    ("rmsnorm", {"0": form(), "1": form()}, "axis 1 of a tensor of 0 dimensions"),
    ("rmsnorm", {"1": form(6)}, "f32[a=6] along dimension 1"),
    ("rmsnorm", {"1": form(4, dtype=F16)}, "f16[a=4] along dimension 1"),
    ("layernorm", {"offset": float("-inf")}, "'offset' is -inf"),
    ("layernorm", {"axis": 0}, "along dimension 0"),
    ("rope", {"scaling": "more"}, "there is no scaling 'more'"),
    ("rope", {"factor": 2.0}, "it has no attribute 'factor'"),
    ("rope", {"0": whole(6, 4)}, "of i64"),
    ("rope", {"0": form(6)}, "of f32[a=6]"),
    ("rope", {"0": form(6, 5)}, "of f32[a=6, b=5]"),
    ("rope", {"theta": 0.0}, "'theta' is 0.0"),
    ("rope at", {"extras": ["mask"]}, "extras that are not the positions"),
    ("rope at", {"1": form(6)}, "at f32[a=6]"),
    ("rope at", {"1": whole(4)}, "at i64[a=4]"),
    ("rope at", {"factor": None}, "the attribute 'factor' is missing"),
    ("rope at", {"factor": -2.0}, "'factor' is -2.0"),
    ("llama3", {"high_freq_factor": 1.0}, "low_freq_factor 1.0 and high_freq_factor 1.0"),
    ("longrope", {"factors": [1.0]}, "not 2 numbers above 0"),
    ("longrope", {"factors": [1.0, 0.0]}, "not 2 numbers above 0"),
    ("experts", {"0": form(6, 3, 4)}, "0[t, k] of 3 dimensions"),
    ("experts", {"2": form(6, 2)}, "positions that are no integers"),
    ("append", {"0": form(2, 9)}, "to f32[a=2, b=9]"),
    ("append", {"1": form(2, 5)}, "of f32[a=2, b=5]"),
    ("append", {"1": form(2, 5, 3)}, "of f32[a=2, b=5, c=3]"),
    ("append", {"1": form(2, 5, 4, dtype=F16)}, "of f16"),
    ("append", {"2": form(5)}, "at f32[a=5]"),
    ("append", {"2": whole(4)}, "at i64[a=4]"),
    ("append", {"cache_lens": [9]}, "no room"),
    ("append", {"cache_lens": [2, 7]}, "no room"),
    ("reshape", {"dims": ["a"]}, "1 names for 3 dimensions"),
    ("reshape", {"dims": ["a"] * 33, "shape": [1] * 33}, "33 names for 33 dimensions"),
    ("reshape", {"shape": [2, 3, 5]}, "to [2, 3, 5]"),
    ("reshape", {"shape": [-2, -3, 4]}, "to [-2, -3, 4]"),
    ("topk", {"count": 0}, "0 of 4 elements"),
    ("topk", {"count": 5}, "5 of 4 elements"),
    ("attention", {"extras": ["bias"], "3": form(7)}, "extras that are not"),
    ("attention with all", {"extras": ["mask", "mask"]}, "extras that are not"),
    ("attention with all", {"extras": ["mask", "positions"]}, "the mask are i64[a=5]"),
    ("attention with all", {"3": flags(5)}, "the positions are bool[a=5]"),
    ("attention with all", {"4": flags(5)}, "the mask are bool[a=5]"),
    ("attention with all", {"3": whole(7)}, "the positions are i64[a=7]"),
    ("attention", {"0": form(4, 5)}, "of f32[a=4, b=5]"),
    ("attention", {"1": form(2, 7)}, "f32[a=2, b=7]"),
    ("attention", {"2": form(2, 7)}, "f32[a=2, b=7]"),
    ("attention", {"1": form(2, 7, 2, dtype=F16)}, "f16"),
    ("attention", {"2": form(2, 7, 3, dtype=F16)}, "f16"),
    ("attention", {"0": whole(4, 5, 2), "1": whole(2, 7, 2), "2": whole(2, 7, 3)}, "i64"),
    ("attention", {"1": form(2, 7, 3)}, "of f32[a=4, b=5, c=2]"),
    ("attention", {"2": form(2, 6, 3)}, "and f32[a=2, b=6, c=3]"),
    ("attention", {"0": form(3, 5, 2)}, "of f32[a=3"),
    ("attention", {"k_lens": [7]}, "2 sequences of queries, 1 of keys"),
    ("attention", {"window": -1}, "a window of -1"),
    ("attention with all", {"causal": False, "window": 0}, "positions that hide no keys"),
    ("attention", {"window": 1 << 62}, "a window of"),
    ("attention", {"causal": 1}, "should be bool"),
    ("attention", {"scale": float("nan")}, "'scale' is nan"),
    ("attention with a cap", {"softcap": 0.0}, "'softcap' is 0.0"),
    ("product", {"indices": "i j, j k"}, "has one '->'"),
    ("product", {"indices": "i j -> i k -> k"}, "has one '->'"),
    ("product", {"indices": "i j -> i k"}, "indices do not fit"),
    ("product", {"indices": "i j k, j k -> i k"}, "for 2 dimensions"),
    ("convolution", {"loops": "n=2 o=4 t=7 c=3"}, "'r' in a position"),
    ("convolution", {"loops": "n=2 o=4 t=0 c=3 r=3"}, "'t=0' is no loop"),
    ("convolution", {"loops": "n=2 o=4 t=7 c=3 r=3 r=3"}, "two loops have one name"),
    ("convolution", {"loops": "n=2 o=4 t=7 c=4 r=3"}, "is outside of a dimension of 3: (0, 4)"),
    ("convolution", {"kept": 6}, "6 of 5 loops"),
    ("convolution", {"kept": 5}, "nothing is aggregated over"),
    ("convolution", {"reads": "0[n, c, t+r-1]; 1[o, c, r]"}, "is outside of a dimension of 7: (-1, 8)"),
    ("convolution", {"reads": "0[n, c, r+t-1 | 0]; 1[o, c, r]"}, "not in canonical form"),
    ("convolution", {"reads": "0[n, c | 0]; 1[o, c, r]"}, "of 3 dimensions"),
    ("convolution", {"reads": "0[n, c, t+r-1 | zero]; 1[o, c, r]"}, "'zero' is nothing that a read finds"),
    ("convolution", {"reads": "0[n, c, t*r | 0]; 1[o, c, r]"}, "'t*r' is no position"),
    ("convolution", {"reads": "0[n, c, t+r-1 | true]; 1[o, c, r]"}, "finds 'true' outside of a tensor of f32"),
    ("convolution", {"reads": "0[n, c, t+r-1 | 0]; 0[n, c, r]"}, "1 operands are read of 2"),
    ("convolution", {"reads": "0[n, c, t+r-1 | 0]; #z"}, "'#z' is no loop"),
    ("convolution", {"dims": ["n", "o"]}, "2 names for 3 dimensions"),
    ("convolution", {"aggregation": "mean"}, "aggregation 'mean'"),
    ("convolution", {"program": "t0 = mul x0 x2"}, "no operand"),
    ("convolution", {"loops": "n=2 o=4 t=7 c=3 r=3 z=90000000"}, "too many index vectors"),
    ("gather", {"reads": "0[@0, d]; 1[t]"}, "do not stand behind it"),
    ("gather", {"reads": "0[@1, d]; 1[t%3]"}, "or on further elements"),
    ("gather", {"reads": "0[@1, d]; 1[t//2]"}, "or on further elements"),
    ("gather", {"reads": "0[@1, d]; 1[t+1 | 0]"}, "or on further elements"),
    ("gather", {"reads": "0[@2, d]; 1[t]"}, "'@2' in a position"),
    ("gather", {"1": form(5)}, "positions that are no integers"),
    ("product", {"indices": "i j, i k -> j k"}, "index i has two extents"),
    ("product", {"indices": "i j, j k -> i i"}, "occurs twice in the result"),
    ("product", {"indices": "i j, j k -> i l"}, "the result does not fit"),
    ("product", {"dims": ["a"]}, "the result does not fit"),
    ("product", {"aggregation": ""}, "aggregation ''"),
    ("product", {"aggregation": "mean"}, "aggregation 'mean'"),
    ("product", {"program": "t0 = lt x0 x1"}, "of bool over 1 indices"),
    ("map", {"aggregation": "sum"}, "aggregation 'sum'"),
    ("window", {"windows": "0:3 1:3"}, "1 windows for 2 inputs"),
    ("window", {"windows": "0:3, 2:4 0:4"}, "window '0:3' is no part"),
    ("window", {"windows": "0:3 1:5, 2:4 0:4"}, "window '0:3 1:5' is no part"),
    ("window", {"windows": "0:3 3:3, 2:4 0:4"}, "window '0:3 3:3' is no part"),
    ("window", {"windows": "0:3 a:3, 2:4 0:4"}, "window '0:3 a:3' is no part"),
    ("window", {"windows": "0:3 1:4, 2:4 0:4"}, "index j has two extents"),
]


def derive(name: str, changes: dict[str, Any]) -> OperatorMeaning:
    family, inputs, attributes = GOOD[name]
    tensors = {str(k): tensor for k, tensor in enumerate(inputs)}
    values = {**tensors, **attributes, **changes}
    kept = {key: value for key, value in values.items() if value is not None}
    operands = tuple(kept[key] for key in sorted(kept) if key.isdigit())
    return FAMILIES[family](Application(family, operands, {k: v for k, v in kept.items() if not k.isdigit()}))


@pytest.mark.parametrize("name", GOOD)
def test_the_good_ones_are_good(name: str) -> None:
    assert derive(name, {}).results


def test_every_family_is_here() -> None:
    assert {family for family, _, _ in GOOD.values()} == set(FAMILIES)


@pytest.mark.parametrize(("name", "changes", "message"), LIES)
def test_a_lie_is_told(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanFault) as caught:
        derive(name, changes)
    assert message in caught.value.message


def test_an_equation_has_at_most_as_many_indices_as_arrays_may_have_dimensions() -> None:
    names = [f"i{k}" for k in range(31)]
    attributes = {"indices": f"{' '.join(names)} -> {' '.join(names)}", "dims": names, "program": "t0 = neg x0"}
    with pytest.raises(PlanFault, match="31 indices; at most 30"):
        FAMILIES["equation"](
            Application("equation", (TensorForm(tuple(names), (1,) * 31, "f32"),), {**attributes, "aggregation": ""})
        )


def test_long_attributes_are_shortened_in_messages() -> None:
    bundle = two_site_plan()
    attributes = {**bundle.operations[0].attributes, "indices": "{0} j, {0} k -> {0}".format("i" * 100_000)}
    lie = msgspec.structs.replace(bundle.operations[0], attributes=attributes)
    with pytest.raises(PlanFault, match="index iii") as caught:
        prove(msgspec.structs.replace(bundle, operations=(lie, *bundle.operations[1:])))
    assert len(caught.value.render()) < 1000


PRODUCTS = [
    ("t0 = mul x0 x1", "contract", {}),
    ("t0 = mul x1 2.0; t1 = mul t0 x0", "contract", {"scale": 2.0}),
    ("t0 = mul x0 x1; t1 = mul t0 0.5; t2 = mul t1 4", "contract", {"scale": 2.0}),
    ("t0 = mul x0 x0", "reduce", None),
    ("t0 = mul x0 x1; t1 = mul t0 t0", "reduce", None),
    ("t0 = add x0 x1", "reduce", None),
    ("t0 = mul x0 x1; t1 = mul t0 inf", "reduce", None),
]


@pytest.mark.parametrize(("program", "kernel", "more"), PRODUCTS)
def test_sums_of_products_are_contractions(program: str, kernel: str, more: dict[str, Any] | None) -> None:
    meaning = derive("product", {"program": program})
    assert meaning.kernel == kernel
    if more is not None:
        assert meaning.attributes == {"equation": EQUATION["indices"], **more}
    assert derive("product", {"program": program, "aggregation": "max"}).kernel == "reduce"


def test_integers_have_no_scale() -> None:
    integers = {"0": whole(6, 4), "1": whole(4, 3)}
    assert derive("product", integers).kernel == "contract"
    assert derive("product", {**integers, "program": "t0 = mul x0 x1; t1 = mul t0 3"}).kernel == "reduce"
    alone = {"1": None, "indices": "i j -> i", "dims": ["a"], "program": "t0 = mul x0 3.0"}
    assert derive("product", alone).kernel == "reduce"


# Attention, whose blocks are checked one after the other


CUT = """
model m
dim heads = 2; dim tokens = 6; dim d = 2
input q : f32[heads, tokens, d]
input k : f32[heads, tokens, d]
input v : f32[heads, tokens, d]
o, lse = attention(q, k, v, causal=true, seq_lens=[2, 4])
output o
"""


def cut_along(index: str) -> Bundle:
    """The attention with one index cut in two."""
    pin = parse_pin(f"o={index}/2")
    return compile_model(CUT, "m.ein", CompileOptions(machine="host", devices=2, pins=(pin,))).bundle


def test_parts_of_keys_follow_one_another() -> None:
    bundle = cut_along("keys")
    prove(bundle)
    (operation,) = bundle.operations
    (first, second) = operation.functions
    border = first.inputs[1].upper[1]

    def with_keys(lower: int, upper: int, start: int, end: int) -> Bundle:
        functions = []
        for function, (lo, up) in ((first, (lower, upper)), (second, (start, end))):
            cut = [Block((0, lo, 0), (2, up, 2))] * 2
            functions.append(msgspec.structs.replace(function, inputs=(function.inputs[0], *cut)))
        lie = msgspec.structs.replace(operation, functions=tuple(functions))
        return msgspec.structs.replace(bundle, operations=(lie,))

    require_blocks(require_labels(with_keys(0, border, border, 6)))
    require_blocks(require_labels(with_keys(0, 1, 1, 6)))  # another border will do
    for keys in ((1, border, border, 6), (0, border, border, 5), (0, 3, 2, 6), (0, 2, 3, 6)):
        with pytest.raises(PlanFault, match="and its queries see 0:6"):
            require_blocks(require_labels(with_keys(*keys)))
    values = msgspec.structs.replace(first, inputs=(*first.inputs[:2], Block((0, 0, 0), (2, 6, 2))))
    lie = msgspec.structs.replace(operation, functions=(values, second))
    with pytest.raises(PlanFault) as caught:
        require_blocks(require_labels(msgspec.structs.replace(bundle, operations=(lie,))))
    assert caught.value.where == "operations[0].functions[0].inputs[2] ('o')"


def test_queries_are_cut_in_one_way_at_a_time() -> None:
    bundle = cut_along("queries")
    prove(bundle)
    (operation,) = bundle.operations
    halves = msgspec.structs.replace(operation.indices[1], intervals=((0, 2), (2, 6)))
    both = (operation.indices[0], halves, *operation.indices[2:])
    lie = msgspec.structs.replace(operation, indices=both, functions=operation.functions * 2)
    with pytest.raises(PlanFault, match="not both"):
        require_blocks(require_labels(msgspec.structs.replace(bundle, operations=(lie,))))


@pytest.mark.parametrize(
    ("changes", "kernel", "cut"),
    [
        ({}, "expert_matmul", 5),
        ({"program": "t0 = mul x1 x0"}, "expert_matmul", 5),
        ({"0": form(6, 2, 4), "reads": "1[@2, n, k]; 0[t, s, k]; 2[t, s]"}, "expert_matmul", 5),
        ({"0": whole(6, 4), "1": whole(3, 5, 4)}, "index", 5),
        ({"1": form(3, 4, 5), "reads": "1[@2, k, n]; 0[t, k]; 2[t, s]"}, "expert_matmul", 5),
        ({"aggregation": "max"}, "index", 4),
    ],
)
def test_products_with_experts_have_a_kernel_of_their_own(changes: dict[str, Any], kernel: str, cut: int) -> None:
    """The last one of its indices are the experts."""
    meaning = derive("experts", changes)
    assert meaning.kernel == kernel
    assert [index.name for index in meaning.indices] == ["t", "s", "n", "k", "a"][:cut]
