"""Recurrences in the language: what becomes one operator, and the errors."""

from __future__ import annotations

import numpy as np
import pytest

from einc.errors import ModelError
from einc.frontend import build
from einc.graph.fuse import fuse
from tests.support.graph_interpreter import interpret

HEAD = """model m
dim t = 6
dim d = 5
dim n = 3
input a : f32[t, d]
input b : f32[t, d]
input c : f32[t, n]
input w : f32[d, d]
input s : f32[d]
input flags : bool[t]
"""


def titles(text: str) -> list[str]:
    return [node.operator.title for node in fuse(build(HEAD + text, "m.ein")).nodes]


def test_what_is_before_and_behind_a_recurrence_joins_it() -> None:
    text = (
        "decay = exp(-a)\nh[t, d, n] = decay[t, d] * h[t - 1, d, n, outside = 0] + b[t, d] * c[t, n]\n"
        "y[t, d] = sum[n](h[t, d, n] * c[t, n])\noutput z = silu(y) * a\n"
    )
    graph = fuse(build(HEAD + text, "m.ein"))
    assert [node.operator.family for node in graph.nodes] == ["recurrence", "equation"]
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.random(t.desc.shape).astype("f4") for t in graph.tensors if t.kind.value == "input"}
    h = np.zeros((5, 3))
    for t in range(6):
        h = np.exp(-arrays["a"][t])[:, None] * h + arrays["b"][t][:, None] * arrays["c"][t]
        y = (h * arrays["c"][t]).sum(1)
        assert np.allclose(interpret(graph, arrays)["z"][t], y / (1 + np.exp(-y)) * arrays["a"][t], rtol=1e-4)


def test_products_of_inputs_alone_are_operators_before_it() -> None:
    text = (
        'output h[t, d] = tanh(sum[k](a[t, k] * w[d, k]) + s[d] + cast(flags[t], "f32")'
        " * sum[k](w[d, k] * h[t - 1, k, outside = 0.1]))\n"
    )
    assert [title.split("(")[0] for title in titles(text)] == ["contract", "recurrence"]


def test_what_is_saved_and_read_further_is_stored() -> None:
    text = "h[t, d] = a[t, d] * h[t - 1, d, outside = s] + b[t, d]\noutput h\noutput y[d] = sum[t](h[t, d] * a[t, d])\n"
    assert titles(text) == ["recurrence(mul+add)", "contract"]


def test_values_that_nothing_reads_are_not_stored() -> None:
    text = (
        "scan t {\n    p[t, d] = a[t, d] * q[t - 1, d, outside = 0]\n    q[t, d] = p[t, d] + b[t, d]\n"
        "    unread[t, d, n] = q[t, d] * c[t, n]\n}\noutput q\n"
    )
    (node,) = fuse(build(HEAD + text, "m.ein")).nodes
    assert node.outputs == ("q",)
    assert node.inputs == ("a", "b")
    assert len(node.operator.program.equations) == 2  # type: ignore[attr-defined]


def test_it_is_read_at_more_than_single_indices_behind_it() -> None:
    text = "h[t, d] = a[t, d] * h[t - 1, d, outside = 0] + b[5 - t, d]\noutput y[i = 5, d] = h[i + 1, d] - h[i, d]\n"
    assert [title.split("(")[0] for title in titles(text)] == ["gather", "recurrence", "index"]


def test_a_tensor_that_is_known_is_no_recurrence() -> None:
    """In a repeat, a name may be assigned anew: its equation reads what it was before."""
    text = "h = a\nrepeat 2 {\n    h[t, d] = h[t, d] * 0.5\n}\noutput h\n"
    assert titles(text) == ["mul+mul"]


ERRORS = {
    "h[t, d] = a[t, d] * h[t, d]": "'h' is not defined, and is not read at the step before along one index",
    "h[t, d] = a[t, d] * h[t - 2, d, outside = 0]": "is not read at the step before along one index",
    "h[t, d] = h[t - 1, d, outside = 0] + h[t, d - 1, outside = 0]": "along one index",
    "h[t, d] = a[t, d] * h[t - 1, d]": "it is not said what 'h' is before the first step",
    "h[t, d] = a[t, d] * h[t - 1, d, outside = 0] + h[t - 1, d, outside = 1]": "two values before its first step",
    "h[t, d] = a[t, d] * h[t - 1, d, outside = c]": r"expected a tensor of the shape \[5\] before the first step",
    "h[t, d] = a[t, d] * h[t - 1, d, outside = nearest]": "nothing is nearest before the first step",
    "h[t, d] = a[t, d] * h[t - 1, 4 - d, outside = 0]": "at more than single indices within its recurrence",
    "h[t, d] = a[t, d] * h[t - 1, n, outside = 0] * c[t, n]": "index 'n' has extent 3, but dimension 2",
    "h[t, d] = a[t, d] * sum[t](h[t - 1, d, outside = 0])": "'t' is aggregated within its recurrence",
    'h[t, d] = cast(a[t, d] * h[t - 1, d, outside = 0], "f16")': "its equation results in f16, but it is read as f32",
    "h[t, d, e] = a[t, d] * h[t - 1, d, e, outside = 0]": "the extent of index 'e' is not known",
    "scan t {\n}": "'scan' has no equation",
    "scan t {\n  y = a + b\n}": "nothing else may stand in 'scan'",
    "scan t {\n  y[t, d] = a[t, d] * b[t, d]\n}": "no equation reads a value of the step before",
    "scan n {\n  h[t, d] = a[t, d] * h[t - 1, d, outside = 0]\n}": "'h' has no index 'n'",
    "scan t {\n  g[t, d] = h[t, d]\n  h[t, d] = a[t, d] * g[t - 1, d, outside = 0]\n}": "the type of 'g' is not known",
    "scan t {\n  g[t, d] = b[t, d] * h[t, d]\n  h[t, d] = a[t, d] * g[t - 1, d, outside = 0]\n}": "further down",
    "scan t {\n  h[t, d] = a[t, d] * h[t - 1, d, outside = 0]\n  h[t, d] = b[t, d]\n}": "'h' has two equations",
    "scan t {\n  g[t, d] = a[t, d] * h[t - 1, d, outside = 0]\n  h[t, d] = b[t, d]\n}": "reads no value of the step",
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_says_what_is_wrong(text: str) -> None:
    with pytest.raises(ModelError, match=ERRORS[text]) as caught:
        build(f"{HEAD}{text}\noutput z = a\n", "m.ein")
    assert "m.ein:" in caught.value.render()
