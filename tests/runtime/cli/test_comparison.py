"""What counts as an error of a run, and how large it may be."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from einc_runtime.cli.comparison import Comparison, compare, describe_not_finite, tolerance_of

NAN, INF = math.nan, math.inf


def of(results, expected, tolerance=0.0):
    return compare({"y": np.array(results)}, {"y": np.array(expected)}, tolerance)


@pytest.mark.parametrize(
    ("results", "expected", "absolute", "relative"),
    [
        ([1.0, -3.0], [1.5, -4.0], 1.0, 0.25),
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0),
        ([1.0], [0.0], 1.0, INF),  # nothing to be relative to
        ([1.0], [1.0, 1.0], INF, INF),
        ([NAN, INF, 2.0], [NAN, INF, 1.0], 1.0, 1.0),
        ([INF, 1.0], [-INF, 1.0], INF, INF),
        ([NAN, 1.0], [1.0, 1.0], INF, INF),
        ([INF, 1.0], [1.0, 1.0], INF, INF),
        ([1.0, 1.0], [NAN, 1.0], INF, INF),
        ([2**60 + 1, 5], [2**60, 5], 1.0, 2.0**-60),  # which no float tells apart
        ([True, False], [True, True], 1.0, 1.0),
    ],
)
def test_errors(results, expected, absolute, relative):
    result = of(results, expected)
    assert (result.absolute, result.relative) == (absolute, relative)
    assert result.holds is (relative == 0)


def test_the_worst_output_counts():
    results, expected = {"a": np.array([1.0]), "b": np.array([8.0])}, {"a": np.array([2.0]), "b": np.array([10.0])}
    assert compare(results, expected, 0.5) == Comparison(2.0, 0.5, 0.5)
    assert compare(results, expected, 0.5).holds
    assert not compare(results, expected, 0.49).holds
    first, second = Comparison(1.0, 0.3, 0.4), Comparison(2.0, 0.2, 0.4)
    assert first.combine(second) == second.combine(first) == Comparison(2.0, 0.3, 0.4)


def test_the_coarsest_type_of_a_plan_gives_the_tolerance():
    for dtypes, tolerance in (
        (("f32", "f16", "i64"), 1e-2),
        (("bf16", "f64"), 8e-2),
        (("f64",), 1e-11),
        (("i32",), 0.0),
    ):
        assert tolerance_of(SimpleNamespace(tensors=[SimpleNamespace(dtype=d) for d in dtypes])) == tolerance


def test_what_is_infinite_is_null_in_json():
    assert of([INF], [1.0]).json() == {"max_abs_error": None, "max_rel_error": None}
    assert of([1.0], [2.0]).json() == {"max_abs_error": 1.0, "max_rel_error": 0.5}


def test_what_is_said_has_all_three_numbers_and_the_worst_output():
    said = "largest error 2, 0.333 of the largest value{} the tolerance of {})"
    arrays = {"a": np.array([1.0]), "y": np.array([4.0])}, {"a": np.array([1.1]), "y": np.array([6.0])}
    assert str(compare(*arrays, 0.0)) == said.format(" of 'y' (above", "0")
    assert str(compare(*arrays, 0.5)) == said.format(" (within", "0.5")


def test_where_sums_cancel_an_error_is_relative_to_what_roundings_move():
    results, expected = {"y": np.array([0.003])}, {"y": np.array([0.001])}
    assert not compare(results, expected, 0.08).holds
    assert compare(results, expected, 0.08, {"y": 0.0002}).holds
    assert not compare(results, expected, 0.08, {"y": 0.00019}).holds
    assert not compare(results, expected, 0.08, {"other": 1.0}).holds
    assert not compare({"y": np.array([NAN])}, expected, 0.08, {"y": 1.0}).holds


def test_elements_that_are_not_finite_are_named() -> None:
    y = np.arange(12.0).reshape(3, 4)
    results = {"y": y, "z": np.where(y > 9, np.nan, y).astype("f4"), "loss": np.array(np.inf), "n": y.astype("i8")}
    assert describe_not_finite(results) == [
        "z: infinite or not a number are 2 of 12 elements, the first at [2, 2]: nan",
        "loss: infinite or not a number are 1 of 1 element, the first at []: inf",
    ]
