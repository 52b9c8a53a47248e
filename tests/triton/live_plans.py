"""Whole plans on the fake driver with the GPU's kernels in the interpreter: everything except CUDA itself.

The cases are those of `make gpu-check` that are small enough.
"""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.dtypes import storage_dtype
from einc_runtime.errors import ValueFault
from einc_runtime.generation.draws import DrawSettings, draw, find_keys
from tests.gpu.cases import CASES, TOLERANCE
from tests.gpu.correctness import arrays_of, compiled, largest_error, reference
from tests.support.compiled_plans import compiled as compile_plan
from tests.support.scan_cases import SCANS, compile_blocked, draw_arrays
from tests.support.triton_plans import interpreted

CHOSEN = [
    ("ffn", "f32", 1, 1),
    ("ffn", "bf16", 8, 1),
    ("ffn", "f16", 4, 2),
    ("epilogues", "f16", 1, 1),
    ("digits", None, 4, 1),
    ("chain_a", "f32", 4, 2),
    ("rows", "f32", 2, 1),
    ("llama_block", "f16", 4, 2),
    ("merges", "f16", 4, 2),
    ("recurrences", "f32", 2, 1),
]
"""Model, dtype, sites, and devices that these share. `live_kernels.py` has every kernel at other sizes."""


WITH_EPILOGUES = ("ffn", "epilogues")


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype", "sites", "devices"), CHOSEN)
def test_plans_with_the_gpus_kernels(name, dtype, sites, devices):
    case = next(case for case in CASES if (case.name, case.dtype) == (name, dtype) and not case.slow)
    bundle = compiled(case, sites, dtype)
    arrays = arrays_of(bundle)
    with interpreted(bundle, devices) as session:
        session.load_all(arrays)
        session.execute()
        found = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
        assert name not in WITH_EPILOGUES or session._executor._kernels.epilogues > 0
    assert largest_error(found, reference(case, arrays)) <= TOLERANCE[dtype or "f32"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", ["linear", "gated", "running"])
def test_scans_in_blocks(case):
    """Each of three sites computes a block of steps: pairs, what is carried, and the steps from there."""
    text, expected = SCANS[case]
    arrays = draw_arrays(text)
    with interpreted(compile_blocked(text, 3), 3) as session:
        session.load_all(arrays)
        session.execute()
        results = {tensor.name: session.offload(tensor.name) for tensor in session.outputs}
    for name, values in expected({name: array.astype(np.float64) for name, array in arrays.items()}).items():
        np.testing.assert_allclose(results[name], values, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_drawn_tokens_are_those_of_the_host():
    """Also of two sites, each of which has a part of the tokens; the last row needs more of them than are listed."""
    text = "model m\ninput x : bf16[3, 173]\ninput s : f32[3, 4]\ninput k : i32[3, 2]\n"
    bundle = compile_plan(text + "output token, likely, most = draw_token(x, s, k)\n", 2)
    rng = np.random.default_rng(7)
    ways = [DrawSettings.of(0.9, 1.0, 0.01, 0), DrawSettings.of(1.1, 0.8, 0.0, 50), DrawSettings.of(1e3, 0.95, 0.0, 0)]
    keys = [find_keys(77 << 30, count) for count in range(3)]
    logits = (3 * rng.standard_normal((3, 173))).astype(storage_dtype("bf16"))
    with interpreted(bundle, 2) as session:
        results = session.run({"x": logits, "s": np.array(ways, np.float32), "k": np.array(keys, np.int32)})
    assert results["token"].tolist() == [draw(logits[n], ways[n], keys[n]) for n in (0, 1)] + [-1]
    assert results["likely"].tolist() == logits.argmax(1).tolist()


def test_an_invalid_value_of_an_input_is_an_error():
    case = next(case for case in CASES if case.name == "rows")
    bundle = compiled(case, 2, "f32")
    arrays = arrays_of(bundle)
    arrays["ids"][3] = 61
    with interpreted(bundle) as session, np.errstate(all="ignore"):
        session.load_all(arrays)
        with pytest.raises(ValueFault, match="the index program at site"):
            session.execute()
