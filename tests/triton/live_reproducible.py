"""Kernels and plans for GPUs that are reproducible, in Triton's interpreter: the same bits in every part, for any p."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import pytest

from einc.plan_reading.restore import compute_outputs
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.ordered_sums import PROGRAM_TERMS
from einc_runtime.plan.proof import prove
from tests.support.plan_arrays import arrays_of, results
from tests.support.reproducible_cases import IMPORTED, SIZES, compile_case
from tests.support.reproducible_kernels import BF16, CALLS, compute_in_f64, reduced, require_equal_parts
from tests.support.sampling import one_in
from tests.support.triton_against_cpu import views
from tests.support.triton_interpreter import run
from tests.support.triton_plans import interpreted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE = {np.dtype("f2"): 2e-3, BF16: 1.6e-2, np.dtype("f4"): 1e-5, np.dtype("f8"): 1e-12}
LONG = {"sum of two levels of chunks": reduced("i j -> j", {"i": 2 * PROGRAM_TERMS + 7, "j": 3}, "sum")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*CALLS, *LONG])
def test_parts_have_the_bits_of_the_whole_which_is_right(name):
    call = (CALLS | LONG)[name]

    def compute(inputs, outputs, in_blocks, out_blocks):
        attributes = {**call.attributes, "reproducible": True}
        found = [output.copy(order="K") for output in outputs]
        sequence = builders.build_kernel(
            Invocation(call.kernel, attributes, views(inputs), views(found), in_blocks, out_blocks)
        )
        run(sequence.steps, sequence.scratch)
        return found

    found = require_equal_parts(call, compute, 4)
    for one, exact in zip(found, compute_in_f64(call), strict=True):
        assert np.abs(one.astype("f8") - exact).max() <= TOLERANCE[one.dtype] * np.abs(exact).max()


SMALLER = {"llama_block": {**SIZES["llama_block"], "seq_lens": "[37, 70]"}}
"""The interpreter takes seconds for a thousand tokens."""


def compute(model, sites, batch, dtype):
    """The outputs of a plan for some sites, with other cuts and devices for every number."""
    sizes = (SIZES | SMALLER).get(model, {})
    definitions = tuple((name, str(value).format(batch=batch)) for name, value in sizes.items())
    options = {"selector": ("eindecomp", "random")[sites % 2], "schedule": ("naive", "synthesized")[sites % 2]}
    bundle = compile_case(model, sites, batch, dtype, machine="dgx-h100", seed=sites, time_limit=5.0,
                          definitions=definitions, **options)  # fmt: skip
    prove(bundle)
    arrays = arrays_of(bundle)
    with interpreted(bundle, devices=min(sites, 1 + sites % 3)) as session:
        return bundle, arrays, results(session, arrays)


@pytest.mark.parametrize(("model", "dtype"), one_in(5, [*SIZES, IMPORTED], ["f32", "bf16"]))
def test_plans_have_one_hash(model, dtype):
    require_one_hash(model, dtype, 2, (1, 3, 8))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("model", [*SIZES, IMPORTED])
def test_plans_of_every_number_of_sites_have_one_hash(model, dtype, batch):
    require_one_hash(model, dtype, batch, range(1, 9))


def require_one_hash(model, dtype, batch, counts):
    found = {sites: compute(model, sites, batch, dtype)[2] for sites in counts}
    bits = {sites: {name: one.tobytes() for name, one in sorted(outputs.items())} for sites, outputs in found.items()}
    assert all(one == bits[1] for one in bits.values()), [sites for sites in bits if bits[sites] != bits[1]]


@pytest.mark.parametrize("model", ["ffn", "llama_decode", "bert"])
def test_results_of_plans_are_right(model):
    bundle, arrays, found = compute(model, 3, 1, "f32")
    exact = compute_outputs(bundle, {name: x.astype("f8") if x.dtype.kind == "f" else x for name, x in arrays.items()})
    for name, one in found.items():
        expected = np.asarray(exact[name], "f8")
        assert np.abs(one.astype("f8") - expected).max() <= 2e-5 * np.abs(expected).max(), name
