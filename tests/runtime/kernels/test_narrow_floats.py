"""Floats of 8 bits: how values are rounded to them and widened, by ml_dtypes and PyTorch; caches of them, and attention
that reads these."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import NARROW_LARGEST, Block
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.launch_cases import SIZES, PartByPart, run_twice, step_arrays
from tests.support.triton_in_numpy import Arena, run

KINDS = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
RNG = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """For each test by itself, whichever others run before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(8))


def make_values(kind):
    """All values of bf16 and f16; what lies halfway between two floats of 8 bits, and beside that; random numbers."""
    every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    known = np.sort(np.arange(256, dtype=np.uint8).view(KINDS[kind]).astype("f4"))
    known = known[np.isfinite(known)]
    halfway = (known[1:] + known[:-1]) / 2
    near = [np.nextafter(halfway, np.float32(way), dtype="f4") for way in (-np.inf, np.inf)]
    spread = RNG.normal(0, 1, 2000).astype("f4") * np.exp2(RNG.integers(-20, 18, 2000)).astype("f4")
    with np.errstate(invalid="ignore"):
        sixteen = [every.view(dtype).astype("f4") for dtype in (ml_dtypes.bfloat16, "f2")]
    return np.concatenate([*sixteen, known, halfway, *near, spread])


def round_by_ml_dtypes(values, kind):
    with np.errstate(invalid="ignore"):
        return np.clip(values, -NARROW_LARGEST[kind], NARROW_LARGEST[kind]).astype(KINDS[kind])


def require_same(found, expected):
    nan = np.isnan(expected.astype("f4"))
    assert np.array_equal(np.isnan(found.astype("f4")), nan)
    assert np.array_equal(found.view(np.uint8)[~nan], expected.view(np.uint8)[~nan])


def run_both(name, attributes, inputs, output, in_place=False, architecture="sm_90"):
    """The output by the CPU's kernel, which works in a copy of it, and by the sources of GPUs."""
    operands = [*inputs, output]
    bounds = [[Block((0,) * x.ndim, x.shape) for x in arrays] for arrays in (inputs, [output])]
    if name == "attention":
        bounds[1].append(Block((0, 0), output.shape[:2]))
    copies = [x.copy() for x in operands]
    logs = [np.zeros(output.shape[:2], "f4")] if name == "attention" else []
    reads, writes = copies[:-1], [copies[0] if in_place else copies[-1], *logs]
    kernel = registry.prepare(Invocation(name, attributes, reads, writes, *bounds))
    with np.errstate(all="ignore"):
        kernel.bind(np.empty(kernel.scratch, np.uint8))()
    arena = Arena()
    placed = [arena.place(x, output=in_place and n == 0) for n, x in enumerate(inputs)]
    into = [placed[0] if in_place else arena.place(output, output=True), *(arena.place(x, output=True) for x in logs)]
    views = ([as_layout(x) for x in arrays] for arrays in (placed, into))
    run(builders.build_kernel(Invocation(name, attributes, *views, *bounds), architecture), arena)
    return writes[0], arena.fetch(into[0])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["f4", "f2", ml_dtypes.bfloat16])
def test_values_are_rounded_to_nearest_and_saturate(kind, source):
    with np.errstate(over="ignore", invalid="ignore"):
        values = make_values(kind).astype(source)
    expected = round_by_ml_dtypes(values.astype("f4"), kind)
    attributes = {"program": f"t0 = cast:{kind} x0", "indices": "i -> i"}
    for found in run_both("map", attributes, [values], np.zeros(len(values), KINDS[kind])):
        require_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_rounds_the_same(kind):
    torch = pytest.importorskip("torch")
    values = np.clip(make_values(kind), -NARROW_LARGEST[kind], NARROW_LARGEST[kind])
    named = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}[kind]
    expected = torch.from_numpy(values).to(named).view(torch.uint8).numpy().view(KINDS[kind])
    require_same(round_by_ml_dtypes(values, kind), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_every_float_of_8_bits_is_widened_exactly(kind):
    stored = np.arange(256, dtype=np.uint8).view(KINDS[kind])
    for dtype in ("f4", "f2", ml_dtypes.bfloat16):
        attributes = {"program": "t0 = cast:f32 x0", "indices": "i -> i"}
        for found in run_both("map", attributes, [stored], np.zeros(256, dtype)):
            np.testing.assert_array_equal(found.astype("f4"), stored.astype("f4"))


def test_what_is_computed_between_two_casts_is_rounded_there():
    """A chain of casts is one map, whose middle is a float of 8 bits."""
    values = make_values("f8e4m3")
    attributes = {
        "program": "t0 = mul x0 0.3; t1 = cast:f8e4m3 t0; t2 = cast:f32 t1; t3 = add t2 1.0",
        "indices": "i -> i",
    }
    with np.errstate(invalid="ignore"):
        expected = round_by_ml_dtypes(values * np.float32(0.3), "f8e4m3").astype("f4") + 1
    for found in run_both("map", attributes, [values], np.zeros(len(values), "f4")):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_of_a_cache_are_rounded(kind, in_place):
    cache = RNG.integers(0, 120, (3, 11, 20), np.uint8).view(KINDS[kind])
    new = (RNG.normal(0, 300, (3, 4, 20))).astype("f2")
    positions = np.array([2, 1, 0, 1])
    expected = cache.copy()
    rounded = round_by_ml_dtypes(new.astype("f4"), kind)
    expected[:, 2], expected[:, 6], expected[:, 7] = rounded[:, 0], rounded[:, 2], rounded[:, 3]
    attributes = {"cache_lens": [6, 5], "new_lens": [1, 3]} | ({"in_place": True} if in_place else {})
    for found in run_both("append", attributes, [cache, new, positions], np.zeros_like(cache), in_place):
        np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("source", "tolerance"), [("f4", 2e-6), (ml_dtypes.bfloat16, 2e-2)])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])  # the second has an instruction that widens
def test_attention_reads_keys_and_values_as_they_are_stored(kind, source, tolerance, architecture):
    """Its results are those of attention of the widened keys and values."""
    attributes = {"causal": True, "scale": 0.2, "q_lens": [1, 2], "k_lens": [70, 41], "window": 0, "extras": []}
    q = RNG.normal(0, 1, (6, 3, 24)).astype(source)
    k, v = (round_by_ml_dtypes(RNG.normal(0, 2, (2, 111, d)).astype("f4"), kind) for d in (24, 16))
    output = np.zeros((6, 3, 16), source)
    wide = [x.astype(source) for x in (k, v)]
    assert all(np.array_equal(x.astype("f4"), y.astype("f4")) for x, y in zip(wide, (k, v), strict=True))
    expected = run_both("attention", attributes, [q, *wide], output)[0].astype("f4")
    for found in run_both("attention", attributes, [q, k, v], output, architecture=architecture):
        np.testing.assert_allclose(found.astype("f4"), expected, rtol=tolerance, atol=tolerance)


CACHES = {"keys   : bf16": "keys   : f8e4m3", "values : bf16": "values : f8e4m3"}


@pytest.mark.parametrize("sites", [1, 3])
def test_a_decode_step_with_caches_of_8_bits(sites):
    """Two steps, on the CPU and by the GPUs' plan of tasks; keys and values are rounded once, as they are written."""
    text = (MODELS / "llama_decode.ein").read_text()
    for wide, narrow in CACHES.items():
        text = text.replace(wide, narrow)
    bundle = compiled(text, sites, "f32", **SIZES)
    prove(bundle)
    arrays = step_arrays(bundle, sites)
    on_cpu = run_twice(Session(bundle, executor=CpuExecutor(bundle, 1)), arrays)["logits"]
    driver = FakeDriver(sites, seed=sites)
    kernels = PartByPart(driver)
    with Session(bundle, executor=CudaExecutor(bundle, range(sites), driver=driver, kernels=kernels)) as session:
        np.testing.assert_allclose(run_twice(session, arrays)["logits"], on_cpu, atol=1e-5)
    if sites == 1:
        assert kernels.joined["places"] == 1
    wide = compiled((MODELS / "llama_decode.ein").read_text(), sites, "f32", **SIZES)
    exact = run_twice(Session(wide, executor=CpuExecutor(wide, 1)), arrays)["logits"]
    error = np.abs(on_cpu - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 0.05  # rounding keys and values to 4 bits is seen, and is small
    (keys,) = (tensor for tensor in bundle.tensors if tensor.name == "keys.0")
    assert keys.dtype == "f8e4m3"
