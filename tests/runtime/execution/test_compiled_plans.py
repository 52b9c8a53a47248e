"""Compiled plans against whole-array numpy: every kernel, any number of sites, all floating types, odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.compiled_plans import EVERYTHING, MODELS, TOLERANCE, close, compiled, everything, execute
from tests.support.sampling import one_in


@pytest.mark.parametrize(("dtype", "sites"), one_in(2, TOLERANCE, range(1, 9)))
def test_ffn(dtype, sites):
    text = (MODELS / "ffn.ein").read_text()
    bundle = compiled(text, sites, dtype, tokens=37, d_model=29, d_ff=53)
    a, (y,) = execute(bundle, sites)
    close(y, np.maximum(a["x"] @ a["w1"], 0) @ a["w2"], dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "sites"), one_in(4, ["chain_a", "chain_b", "chain_c", "chain_d", "chain_e"], [2, 3, 5, 7, 8])
)
def test_chains(name, sites):
    bundle = compiled((MODELS / f"{name}.ein").read_text(), sites, "f32", scale=300)
    a, (y,) = execute(bundle, sites)
    factors = [a[f"m{k + 1}"] for k in range(len(a))]
    close(y, np.linalg.multi_dot(factors), "f32")


@pytest.mark.parametrize(("dtype", "sites"), one_in(2, ["f32", "f64"], [1, 2, 3, 4, 5, 6, 8]))
def test_every_kernel_in_one_model(sites, dtype):
    bundle = compiled(EVERYTHING, sites, dtype)
    assert {operation.kernel for operation in bundle.operations} >= {"contract", "map", "reduce", "softmax"}
    a, found = execute(bundle, sites)
    for output, expected in zip(found, everything(a), strict=True):
        assert output.shape == expected.shape
        close(output, expected, dtype)


def test_compiled_plans_are_bit_identical_from_run_to_run():
    bundle = compiled((MODELS / "chain_b.ein").read_text(), 6, "f32", scale=200)
    results = {execute(bundle, 1, workers)[1][0].tobytes() for workers in (1, 2, 3, 4) for _ in range(3)}
    assert len(results) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sites", [9, 12, 16, 30, 72])
def test_many_sites(sites):
    bundle = compiled(EVERYTHING, sites, "f32", n=4)
    a, found = execute(bundle, sites)
    for output, expected in zip(found, everything(a), strict=True):
        close(output, expected, "f32")
