"""Params, dims, presets and definitions of a model, its name, and `--dtype`."""

from __future__ import annotations

from typing import Any

import pytest

from einc.core.tensor import DType
from einc.errors import ModelError, UsageError
from einc.frontend import build


def test_params_and_dims_may_stand_in_any_order() -> None:
    text = "dim b = a * 2\nparam a = sum(lens) - c\nparam lens = [c] * 3\nparam c = 1 + 1\n"
    graph = build(text + "input x : f32[b]\noutput y = x", "m.ein")
    assert graph.tensors[0].desc.shape == (8,)


PRESETS = """
model named
param lens = [16] * 2
dim n = sum(lens)
dim m = n // 2
input x : f16[n, m]
weight w : i32[m]
y = cast(cast(x, "f32"), f64) * 2
output y
preset long { lens = [64]; m = 3 }
"""


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (32, 16)),
        ({"definitions": [("n", "10")]}, (10, 5)),
        ({"definitions": [("lens", "[4] * 3 + [2]")]}, (14, 7)),
        ({"preset": "long"}, (64, 3)),
        ({"preset": "long", "definitions": [("m", "n - 60"), ("m", "n - 59")]}, (64, 5)),
    ],
)
def test_definitions_replace_presets_which_replace_the_text(options: dict[str, Any], shape: tuple[int, int]) -> None:
    assert build(PRESETS, "m.ein", **options).tensors[0].desc.shape == shape


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"definitions": [("lenz", "1")]}, "no param or dim 'lenz'", "did you mean"),
        ({"definitions": [("n", "")]}, "expected an expression", ""),
        ({"definitions": [("n", "4\ndim q = 3")]}, "expected one `name=value`", ""),
        ({"definitions": [("n", "4; m = 2")]}, "expected one `name=value`", ""),
        ({"definitions": [("n", "lenss")]}, "no param or dim 'lenss'", "did you mean 'lens'"),
        ({"definitions": [("n", "four")]}, "no param or dim 'four'", "a string stands in double quotes"),
        ({"definitions": [("n", "0")]}, "must be at least 1", ""),
        ({"definitions": [("n", "m")]}, "defined by itself", ""),
        ({"definitions": [("n", "10**10**10")]}, "too large", ""),
        ({"definitions": [("", "4")]}, "expected", ""),
        ({"definitions": [("n, m", "4")]}, "expected one", ""),
        ({"preset": "lang"}, "no preset 'lang'", "did you mean"),
    ],
)
def test_wrong_definitions_are_errors_of_the_command_line(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build(PRESETS, "m.ein", **options)
    assert hint in caught.value.render()
    argument = "preset lang" if "preset" in options else "=".join(options["definitions"][0]).partition("\n")[0]
    assert str(caught.value.where).startswith((argument, "m.ein:"))


def test_dtype_replaces_floating_types_everywhere() -> None:
    graph = build(PRESETS, "m.ein", dtype="bf16")
    assert {t.desc.dtype for t in graph.tensors} == {DType.BF16, DType.I32}
    assert {t.desc.dtype for t in build(PRESETS, "m.ein").tensors} == {DType.F16, DType.I32, DType.F32, DType.F64}
    for wrong in ("i32", "single", ""):
        with pytest.raises(UsageError, match=rf"\(f16, bf16, f32, f64\), found '{wrong}'"):
            build(PRESETS, "m.ein", dtype=wrong)


def test_the_graph_is_named_after_the_model_or_its_file() -> None:
    assert build(PRESETS, "x/other.ein").name == "named"
    assert build(PRESETS.replace("model named", ""), "x/other.ein").name == "other"
