"""Lists of integers that are read at an index: as values, in positions, and as bounds of what is aggregated."""

from __future__ import annotations

import numpy as np
import pytest

from einc.errors import ModelError
from einc.frontend import build
from tests.support.graph_interpreter import interpret

HEAD = """model m
dim n = 12
param even = [1, 4, 7]
param same = [4] * 3
param odd = [0, 5, 7, 7]
input x : f32[n]
"""
X = np.arange(12, dtype="f4") ** 2


def compute(line: str) -> list[float]:
    graph = build(f"{HEAD}{line}\noutput y\n", "m.ein")
    return interpret(graph, {"x": X})["y"].tolist()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y[s] = x[even[s]]", X[[1, 4, 7]]),
        ('y[s = 2] = x[even[s] + 2] + cast(even[s], "f32")', X[[3, 6]] + [1, 4]),
        ("y[s] = x[2 * odd[s] - 3, outside = -1]", [-1, X[7], X[11], X[11]]),
        ('y[s] = cast(odd[s] * s, "f32")', [0, 5, 14, 21]),
        ("y[s = 3] = sum[i < even[s]](x[odd[s] + i, outside = 0.0])", [0, X[5:9].sum(), X[7:].sum()]),
        ("y[s] = sum[i < same[s]](x[4 * s + i])", X.reshape(3, 4).sum(1)),
    ],
)  # fmt: skip
def test_items_are_constants_of_an_equation(line: str, expected: object) -> None:
    assert compute(line) == np.asarray(expected, "f4").tolist()


def test_a_bounded_index_that_all_items_bound_alike_needs_no_condition() -> None:
    (node,) = build(f"{HEAD}y[s] = sum[i < same[s]](x[4 * s + i])\noutput y", "m.ein").nodes
    assert node.operator.attributes["reads"] == "0[4*s+i]"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y[s] = x[s] * same[s]", "index 's' is 12, but a list of 3 items is read at it"),
        ('y[s] = x[s] * cast(even[s], "f32")', "index 's' is 12, but a list of 3 items is read at it"),
        ("y[s] = x[even[s + 1]]", "a list is read at one index"),
        ("y[s] = sum[i < odd[s]](x[i])", "an extent is at least 1, found 0"),
    ],
)
def test_what_is_no_constant_of_an_equation(line: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        compute(line)
