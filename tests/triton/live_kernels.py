"""Every Triton kernel except attention, in the interpreter, against the CPU's: odd sizes, strided views, NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from einc.frontend import build
from einc.graph.fuse import fuse
from einc_runtime.custom import load_custom_operator
from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation, JointInvocation
from einc_runtime.kernels.triton import builders
from einc_runtime.plan.element_types import ELEMENT_FORMATS, STORED_FORMS
from tests.support import stored_experts
from tests.support.aggregate_cases import CASES as AGGREGATE_CASES
from tests.support.custom_packages import install_spectra, make_site
from tests.support.kernel_runs import concatenation, lookup
from tests.support.stored_experts import draw_experts
from tests.support.triton_against_cpu import (
    BF16,
    F16,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    TOLERANCE,
    agree,
    blocks,
    check,
    embedded,
    normal,
    views,
)
from tests.support.triton_interpreter import run

__all__ = ["install_spectra", "make_site"]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CHAIN = "t0 = mul x0 x1; t1 = silu t0; t2 = add t1 1.5; t3 = gelu t2; t4 = tanh t3; t5 = gelu_tanh t4; t6 = sigmoid t5"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_chain_with_broadcast_and_transpose(dtype):
    x, w = normal(13, 37, dtype=dtype), normal(37, dtype=F64 if dtype == F64 else F32)
    check("map", {"program": CHAIN, "indices": "i j, j -> j i"}, [x, w], [np.empty((37, 13), dtype)], tolerance=None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("stored", ["mxfp8", "mxfp4", "nvfp4"])
def test_floats_with_scales_of_few_bits(dtype, stored):
    form, rng = STORED_FORMS[stored], np.random.default_rng(5)
    width = 256 // ELEMENT_FORMATS[form.values].packing
    values = (
        normal(45, 256).astype(storage_dtype("f8e4m3"))
        if form.values == "f8e4m3"
        else (rng.integers(0, 256, (45, width), np.uint8).view("V1"))
    )
    kind = storage_dtype(form.scales)
    scales = np.abs(normal(45, 256 // form.group)).astype(kind)
    weight = [values, scales, *[np.float32(0.2)] * form.has_factor]
    check("dequantize", {"group": form.group}, weight, [np.empty((45, 256), dtype)])
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5}[np.dtype(dtype)]
    for rows in (5, 19):
        x, y = normal(rows, 256, dtype=dtype), np.empty((rows, 45), dtype)
        given = {"group": form.group, "equation": "t k, n k -> t n"}
        check("quantized_contract", given, [x, *weight], [y], tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize(("stored", "group"), [("f8e4m3", 0), ("f8e4m3", 128), ("mxfp8", 32), ("nvfp4", 16)])
def test_products_of_rows_rounded_to_floats(dtype, stored, group):
    form, rng = STORED_FORMS[stored], np.random.default_rng(7)
    values = normal(48, 256).astype(storage_dtype("f8e4m3"))
    if form.values == "f4x2":
        values = rng.integers(0, 256, (48, 128), np.uint8).view("V1")
    scales = np.abs(normal(48, 256 // group) if group else normal(48)).astype(storage_dtype(form.scales))
    x = normal(19, 256, dtype=dtype)
    x[3] = 0
    largest = [np.abs(x).max(1)] * form.needs_largest(group)
    inputs = [x, *largest, values, scales, *[np.float32(0.2)] * form.has_factor]
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5}[np.dtype(dtype)]
    given = {"equation": "t k, n k -> t n", **({"group": group} if group else {})}
    check("rounded_contract", given, inputs, [np.empty((19, 48), dtype)], tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("group", [32, 128])
def test_groups_of_floats_of_8_bits_are_multiplied_as_they_are(dtype, group):
    """Of two summed indices, and with results whose channels come first, as those of queries do."""
    values = normal(3, 21, 2, 128).astype(storage_dtype("f8e4m3"))
    inputs = [normal(70, 2, 128, dtype=dtype), values, np.abs(normal(3, 21, 2, 128 // group))]
    inputs[0][3, 1] = 0
    given = {"equation": "t h k, a n h k -> a t n", "group": group, "scale": 0.5}
    output = np.empty((3, 70, 21), dtype)
    tolerance = {F16: 4e-3, BF16: 2e-2}[np.dtype(dtype)]
    (plan,) = check("rounded_contract", given, inputs, [output], tolerance=tolerance, steps=(1,))
    assert [step.source.name.rpartition("_")[0] for step in plan.steps] == ["round_floats", "grouped_product"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("packing", "group", "zeros"), [(1, 0, False), (1, 64, True), (2, 32, True), (2, 0, False)])
def test_weights_are_widened(dtype, packing, group, zeros):
    rng = np.random.default_rng(3)
    values = rng.integers(0, 256, (5, 3, 128 // packing), np.uint8)
    shape = (5, 3, 128 // group) if group else (5, 3)
    points = [rng.integers(-8, 9, shape).astype("i1")] if zeros else []
    inputs = [values.view("i1") if packing == 1 else values, normal(*shape, dtype=dtype), *points]
    check("dequantize", {"group": group}, inputs, [np.empty((5, 3, 128), dtype)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize(("stored", "group"), [("float8_e4m3fn", 0), ("float8_e4m3fn", 128), ("float8_e5m2", 32)])
def test_floats_of_8_bits(dtype, stored, group):
    """All bytes are widened as ml_dtypes does it, and products of few and of many rows multiply them."""
    kind = np.dtype(getattr(ml_dtypes, stored))
    every = np.arange(256, dtype="u1").view(kind).reshape(2, 128)
    scales = normal(2, 128 // group) if group else normal(2)
    check("dequantize", {"group": group}, [every, scales], [np.empty((2, 128), dtype)])
    values = normal(45, 256).astype(kind)
    given = {"group": group, "equation": "t k, n k -> t n"}
    scales = normal(45, 256 // group) if group else normal(45)
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5}[np.dtype(dtype)]
    for rows in (5, 19):
        x, y = normal(rows, 256, dtype=dtype), np.empty((rows, 45), dtype)
        check("quantized_contract", given, [x, values, scales], [y], tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("packing", "group", "zeros"), [(1, 0, False), (1, 96, True), (2, 32, True), (2, 0, False)])
def test_products_with_quantized_weights(dtype, packing, group, zeros):
    rng = np.random.default_rng(4)
    values = rng.integers(0, 256, (3, 45, 192 // packing), np.uint8)
    shape = (3, 45, 192 // group) if group else (3, 45)
    points = [rng.integers(-8, 9, shape).astype("i1")] if zeros else []
    weight = [values.view("i1") if packing == 1 else values, normal(*shape, dtype=dtype, scale=0.01), *points]
    attributes = {"group": group, "scale": 0.5}
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5, F64: 1e-12}[np.dtype(dtype)]
    for rows, equation, out in (
        (5, "t e k, e f k -> e t f", (3, 5, 45)),
        (3, "t e k, e f k -> e f t", (3, 45, 3)),
        (19, "t e k, e f k -> e t f", (3, 19, 45)),
    ):
        x = normal(rows, 3, 192, dtype=dtype)
        given = {**attributes, "equation": equation}
        check("quantized_contract", given, [x, *weight], [np.empty(out, dtype)], tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("equation", "shape", "weight", "scales", "out"),
    [
        ("t e k, e f k -> e t f", (5, 3, 192), (3, 45, 192), (3, 45), (3, 5, 45)),
        ("t h d, j h d -> j t", (70, 2, 40), (37, 2, 40), (37,), (37, 70)),
        ("k, e f k -> f e", (33,), (2, 1, 33), (2,), (1, 2)),
    ],
)
def test_products_of_rounded_rows(dtype, equation, shape, weight, scales, out):
    rng = np.random.default_rng(6)
    x = normal(*shape, dtype=dtype)
    x.reshape(-1, shape[-1])[0, :5] = 0
    summed = tuple(n for n, name in enumerate(equation.split(",")[0].split()) if name not in equation.split("->")[1])
    largest = np.abs(x.astype("f8")).max(summed).astype(dtype)
    values = rng.integers(-128, 128, weight).astype("i1")
    inputs = [x, largest, values, normal(*scales, dtype=dtype, scale=0.01)]
    tolerance = {F16: 2e-3, BF16: 1.6e-2, F32: 1e-6, F64: 1e-14}[np.dtype(dtype)]
    attributes = {"equation": equation, "scale": 0.5}
    check("rounded_contract", attributes, inputs, [np.empty(out, dtype)], tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("tokens", "slots", "count", "each"), [(70, 2, 6, False), (40, 3, 9, True), (5, 3, 9, False), (1, 1, 5, False)]
)
def test_products_with_picked_experts(dtype, tokens, slots, count, each):
    """All experts, and some of them: slots that picked others are 0."""
    rng = np.random.default_rng(tokens)
    x = normal(*((tokens, slots, 33) if each else (tokens, 33)), dtype=dtype)
    weight, picks = normal(count, 37, 33, dtype=dtype, seed=1), rng.integers(0, count, (tokens, slots))
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5, F64: 1e-12}[np.dtype(dtype)]
    for low, up, steps in ((0, count, (1, 2)), (2, 5, (1,))):
        lowers = [(0,) * x.ndim, (low, 0, 0), (0, 0)]
        result = np.empty((tokens, slots, 37), dtype)
        inputs = [x, weight[low:up], picks]
        check("expert_matmul", {"experts": count}, inputs, [result], lowers, tolerance=tolerance, steps=steps)
        inputs[1] = np.ascontiguousarray(inputs[1].swapaxes(1, 2))
        attributes = {"experts": count, "transposed": True}
        check("expert_matmul", attributes, inputs, [result], lowers, tolerance=tolerance, steps=(1,))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", stored_experts.FORMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("tokens", "slots", "each"), [(36, 2, True), (5, 3, False)])
def test_products_with_picked_experts_as_they_are_stored(form, dtype, tokens, slots, each):
    if dtype == F64 and not form.startswith("i"):
        return  # floats are widened to f32 at most
    weight, rng = draw_experts(form, 4, 37, 96, np.dtype(dtype)), np.random.default_rng(tokens)
    x = normal(*((tokens, slots, 96) if each else (tokens, 96)), dtype=dtype)
    picks = rng.integers(0, 4, (tokens, slots))
    tolerance = {F16: 4e-3, BF16: 2e-2, F32: 1e-5, F64: 1e-12}[np.dtype(dtype)]
    for low, up in ((0, 4), (1, 3)):
        values, *beside = (array[low:up] for array in weight.operands)
        lowers = [(0,) * x.ndim, (low, 0, 0), *((0,) * array.ndim for array in beside), (0, 0)]
        attributes = {"experts": 4, "group": weight.group}
        inputs, result = [x, values, *beside, picks], np.empty((tokens, slots, 37), dtype)
        check("expert_matmul", attributes, inputs, [result], lowers, tolerance=tolerance, steps=(1,))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 1e-20, 88.0, -88.0, 3e38, np.inf, -np.inf, np.nan]


UNARY = ["neg", "abs", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt"]


BINARY = ["add", "sub", "mul", "div", "floordiv", "mod", "pow", "max", "min"]


COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_every_function_of_floats(dtype):
    x = np.array(SPECIAL, dtype)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(x[:, None], x[None, :]))
    for name in UNARY:
        tame = x[np.abs(x) < 1e30] if name in ("gelu", "gelu_tanh", "silu") else x  # minus infinity times nothing
        check("map", {"program": f"t0 = {name} x0", "indices": "i -> i"}, [tame], [np.empty(tame.shape, dtype)])
    for name in BINARY:
        tame = np.isfinite(a) & np.isfinite(b) if name in ("floordiv", "mod") else np.ones(a.shape, bool)
        tame &= (np.abs(a) < 1e30) & (np.abs(b) < 1e30) if name in ("floordiv", "mod") else True
        check("map", {"program": f"t0 = {name} x0 x1", "indices": "i, i -> i"}, [a[tame], b[tame]],
              [np.empty(tame.sum(), dtype)], steps=(1,))  # fmt: skip
    for name in COMPARE:
        check(
            "map",
            {"program": f"t0 = {name} x0 x1", "indices": "i j, i j -> i j"},
            [a, b],
            [np.empty(a.shape, bool)],
            steps=(1,),
        )


@pytest.mark.parametrize("dtype", [I32, I64], ids=str)
def test_every_function_of_integers(dtype):
    x = np.array([0, 1, -1, 2, -3, 7, 100, -100, np.iinfo(dtype).max], dtype)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(x[:, None], x[None, :]))
    for name in ("neg", "abs", "relu"):
        check("map", {"program": f"t0 = {name} x0", "indices": "i -> i"}, [x], [np.empty(x.shape, dtype)], steps=(1,))
    for name in ("add", "sub", "mul", "floordiv", "mod", "max", "min"):
        check(
            "map",
            {"program": f"t0 = {name} x0 x1", "indices": "i j, i j -> i j"},
            [a, b],
            [np.empty(a.shape, dtype)],
            steps=(1,),
        )


def test_truth_values_and_casts():
    x, c, d = normal(5, 9), normal(5, 9) > 0, normal(9, seed=3) > 0
    program = "t0 = and x1 x2; t1 = not t0; t2 = or t1 x2; t3 = where t2 x0 2.5; t4 = cast:f16 t3; t5 = cast:i32 t4"
    program += "; t6 = cast:f32 t5"
    check("map", {"program": program, "indices": "i j, i j, j -> i j"}, [x, c, d], [np.empty((5, 9), F32)])
    check("map", {"program": "t0 = and x0 x1", "indices": "i j, j -> j i"}, [c, d], [np.empty((9, 5), bool)])
    check(
        "map", {"program": "t0 = cast:bf16 x0", "indices": "i j -> i j"}, [x], [np.empty((5, 9), F32)], tolerance=8e-3
    )
    check("map", {"program": "t0 = add x0 inf", "indices": "i j -> i j"}, [x], [np.empty((5, 9), F32)])
    check("map", {"program": "t0 = copy x0", "indices": "-> i"}, [np.array(3.5, F32)], [np.empty(7, F32)])
    check(
        "map",
        {"program": "t0 = copy x0", "indices": "a b c d -> c a d b"},
        [normal(2, 3, 4, 5)],
        [np.empty((4, 2, 5, 3), F32)],
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64, I32, I64], ids=str)
@pytest.mark.parametrize("aggregation", ["sum", "max", "min", "prod"])
def test_reduce(aggregation, dtype):
    x, w = normal(3, 17, dtype=dtype), normal(17, 5, dtype=dtype, seed=1)
    a = {"program": "t0 = mul x0 x1", "indices": "i j, j k -> i k", "aggregation": aggregation}
    check("reduce", a, [x, w], [np.empty((3, 5), dtype)], tolerance=TOLERANCE[dtype] * 4)


@pytest.mark.parametrize(
    "indices", ["i j k -> j", "i j k -> k i", "i j k ->", "i j k -> i j", "i i k -> k", "i j k -> k"]
)
def test_reduce_along_any_axes(indices):
    shape = (6, 6, 200)
    result = {"i": 6, "j": 6, "k": 200}
    out = np.empty([result[name] for name in indices.split("->")[1].split()], F32)
    check(
        "reduce",
        {"program": "t0 = copy x0", "indices": indices, "aggregation": "sum"},
        [normal(*shape)],
        [out],
        tolerance=1e-5,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("equation", "shapes"), [("i j, k -> i", ((5, 17), (9,), (5,))), ("i, j -> j i", ((5,), (17,), (17, 5)))]
)
def test_contractions_without_matrices_times_a_number(equation, shapes, dtype):
    *inputs, output = (normal(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes))
    attributes = {"equation": equation, "scale": -0.75}
    check("contract", attributes, inputs, [output], tolerance=TOLERANCE[dtype] * 4)


def test_reduce_shares_long_axes_out_and_keeps_not_a_number():
    x = normal(70001)
    plans = check(
        "reduce",
        {"program": "t0 = mul x0 x0", "indices": "i ->", "aggregation": "sum"},
        [x],
        [np.empty((), F32)],
        tolerance=1e-5,
    )
    assert all(len(plan.steps) == 2 for plan in plans)
    x[31] = np.nan
    check("reduce", {"program": "t0 = copy x0", "indices": "i ->", "aggregation": "max"}, [x], [np.empty((), F32)])
    wide = normal(3, 40000, dtype=I32, scale=100)
    check(
        "reduce", {"program": "t0 = copy x0", "indices": "i j -> i", "aggregation": "sum"}, [wide], [np.empty(3, I32)]
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows(dtype):
    for shape in ((7,), (5, 33), (3, 4, 130)):
        x, y = normal(*shape, dtype=dtype), np.empty(shape, dtype)
        vectors = normal(2, shape[-1], dtype=dtype, seed=4)
        check("rmsnorm", {"eps": 1e-3}, [x, vectors[0]], [y])
        check("rmsnorm", {"eps": 1e-3, "offset": 1.0}, [x, vectors[0]], [y])
        check("rmsnorm", {"eps": 1e-3}, [x], [y])
        for count in range(3):
            check("layernorm", {"eps": 1e-3}, [x, *vectors[:count]], [y], tolerance=TOLERANCE[dtype] * 3)
        check("softmax", {"axis": -1}, [x], [y])
        check("softmax", {"axis": 0}, [x], [y])


def test_long_rows():
    x = normal(2, 16500)
    x[1, 3] = np.nan
    y = np.empty_like(x)
    vectors = normal(2, 16500, seed=4)
    check("rmsnorm", {"eps": 1e-3}, [x, vectors[0]], [y], steps=(1,))
    check("layernorm", {"eps": 1e-3}, [x, *vectors], [y], tolerance=1e-5, steps=(1,))
    check("softmax", {"axis": 1}, [x], [y], steps=(1,))
    check("softmax", {"axis": 0}, [normal(700, 64)], [np.empty((700, 64), F32)], steps=(1,))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope(dtype):
    x, y = normal(3, 11, 6, dtype=dtype), np.empty((3, 11, 6), dtype)
    plain = {"theta": 1e4, "scaling": "none"}
    low = [(0, 4, 0)]
    check("rope", {**plain, "seq_lens": [7, 9]}, [x], [y], lowers=low, out_lowers=low)
    check("rope", {**plain, "seq_lens": [7, 9]}, [x[0]], [y[0]], lowers=[(4, 0)], out_lowers=[(4, 0)])
    check("rope", plain, [x[1], np.arange(11)], [y[1]])
    llama = {"theta": 5e5, "scaling": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_length": 8192.0}  # fmt: skip
    check("rope", llama, [x, np.arange(11) ** 3 * 90], [y], tolerance=TOLERANCE[dtype] * 2)
    negative = Invocation("rope", plain, views([x, -np.arange(11)]), views([y]), (), blocks([y]))
    plan = builders.build_kernel(negative)
    status = np.zeros(1, np.int32)
    run(plan.steps, plan.scratch, status)
    assert status[0] != 0
    assert "negative" in plan.status_message


@pytest.mark.parametrize("dtype", [F32, BF16, I64], ids=str)
@pytest.mark.parametrize("kind", [I32, I64], ids=str)
def test_rows_of_a_table(dtype, kind):
    table, ids = normal(9, 13, dtype=dtype), np.array([[4, 0, 12], [30, 9, 13]], kind)
    y = np.empty((2, 3, 13), dtype)
    name, attributes = lookup(ids, 31, 13)
    check(name, attributes, [ids, table], [y], lowers=[(0, 0), (4, 0)])
    for wrong in (-1, 31):
        ids[1, 1] = wrong
        own = blocks([ids, table]), blocks([y])
        plan = builders.build_kernel(Invocation(name, attributes, views([ids, table]), views([y]), *own))
        status = np.zeros(1, np.int32)
        run(plan.steps, plan.scratch, status)
        assert status[0] != 0


@pytest.mark.parametrize("dtype", [F16, F64, I32], ids=str)
def test_append(dtype):
    cache, new = normal(2, 12, 5, dtype=dtype), normal(2, 9, 5, dtype=dtype, seed=2)
    positions = np.array([0, 3, 3, 6, 6, 0, 4, 1, 4], I64)  # several write one row: the last does
    a = {"cache_lens": [7, 5], "new_lens": [5, 4]}
    check("append", a, [cache, new, positions], [np.empty_like(cache)])
    part = cache[:, 4:10]
    check(
        "append",
        a,
        [part, new, positions],
        [np.empty_like(part)],
        lowers=[(0, 4, 0), (0, 0, 0), (0,)],
        out_lowers=[(0, 4, 0)],
    )
    positions[8] = 5
    y = np.empty_like(cache)
    arrays = [cache, new, positions]
    plan = builders.build_kernel(Invocation("append", a, views(arrays), views([y]), blocks(arrays), blocks([y])))
    status = np.zeros(1, np.int32)
    run(plan.steps, plan.scratch, status)
    assert status[0] != 0


@pytest.mark.parametrize("dtype", [F32, F16, np.dtype(bool), I64], ids=str)
def test_concat_and_reshape(dtype):
    parts = [normal(3, n, 4, dtype=dtype, seed=n) for n in (2, 5, 1)]
    kernel = concatenation(1, *(part.shape for part in parts))
    check(*kernel, parts, [np.empty((3, 8, 4), dtype)])
    cut = [parts[0][:, 1:], parts[1][:, 1:], parts[2]]
    check(*kernel, cut, [np.empty((3, 5, 4), dtype)], lowers=[(0, 1, 0), (0, 1, 0), (0, 0, 0)], out_lowers=[(0, 3, 0)])
    x = normal(6, 4, 5, dtype=dtype)
    for shape in ((24, 5), (120,), (3, 2, 2, 10), (5, 24), (8, 15)):
        check("reshape", {}, [x], [np.empty(shape, dtype)])


def test_many_blocks_in_one_launch():
    shapes = [(3, 5), (7,), (2, 3, 4, 5), (1,), (4, 128), ()]
    sources = [embedded(normal(*shape, seed=n).astype(kind), 1 + n % 2) for n, (shape, kind) in
               enumerate(zip(shapes, (F32, F16, F64, np.dtype(bool), F32, I32), strict=True))]  # fmt: skip
    targets = [embedded(np.zeros_like(source), 1 + n % 3) for n, source in enumerate(sources)]
    plan = builders.build_moves(views(sources), views(targets))
    assert len(plan.steps) == 1
    run(plan.steps)
    for source, target in zip(sources, targets, strict=True):
        assert np.array_equal(source, target)


def test_aligned_blocks_move_in_wide_units():
    sources = [normal(40, 64, dtype=F16, seed=n)[:, 16:48] for n in range(3)]
    targets = [np.zeros((40, 32), F16) for _ in sources]
    plan = builders.build_moves(views(sources), views(targets))
    run(plan.steps)
    assert all(np.array_equal(a, b) for a, b in zip(sources, targets, strict=True))
    assert "units of 8 bytes" in plan.steps[0].source.text


RANKED = [F32, F16, BF16, F64, I32, I64]


@pytest.mark.parametrize("dtype", RANKED, ids=str)
def test_topk(dtype):
    x = normal(3, 50, dtype=dtype, scale=3)
    x[0, 10:20] = x[0].max()
    if dtype.kind != "i":
        x[1, 5] = x[1, 9] = np.nan
        x[2] = -np.inf
        x[2, 3:5] = 0.0, -0.0
    lowers = [(0, 100)]
    check("topk", {"axis": 1}, [x], [np.empty((3, 6), dtype), np.empty((3, 6), I64)], lowers)
    few = np.ascontiguousarray(x[:, :4])
    check("topk", {"axis": 1}, [few], [np.empty((3, 6), dtype), np.empty((3, 6), I64)], lowers)


def test_topk_of_long_rows():
    check("topk", {"axis": 0}, [normal(9000)], [np.empty(5, F32), np.empty(5, I64)], steps=(1,))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("aggregation", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32], ids=str)
def test_aggregations_of_copies(aggregation, dtype):
    copies = [embedded(normal(5, 9, dtype=dtype, seed=n)) for n in range(4)]
    whole = [copy.astype(I64 if dtype == I32 else F64) for copy in copies]
    function = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[aggregation]
    expected = function.reduce(whole)
    plan = builders.build_aggregate(aggregation, views(copies), views(copies[:1])[0])  # over the first
    run(plan.steps)
    agree([copies[0]], [expected.astype(dtype)], TOLERANCE[dtype])


def both_merges(aggregation, copies, dims, tolerance, strided):
    flat = [array for copy in copies for array in copy]
    target = [np.empty_like(array) for array in copies[0]]
    kernel = registry.prepare_joint_aggregation(JointInvocation(aggregation, flat, target, dims))
    with np.errstate(all="ignore"):
        kernel.bind(np.empty(kernel.scratch, np.uint8))()
    own = [embedded(array, 2 if strided else 1) for array in flat]
    for place in (own[: len(target)], [embedded(np.full_like(array, 7)) for array in target]):  # fresh first
        fresh = [embedded(array, 2 if strided else 1) for array in flat]
        goal = fresh[: len(target)] if place is own[: len(target)] or strided else place
        plan = builders.build_joint_aggregation(JointInvocation(aggregation, views(fresh), views(goal), dims))
        run(plan.steps, plan.scratch)
        agree(goal, target, tolerance)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_averages_are_aggregated(dtype, strided):
    for shape, has in (((7, 5, 4), (0, 1)), ((7, 5, 4), (1, 0)), ((6,), ()), ((2, 3, 4, 5), (2, 0))):
        copies = []
        for n in range(3):
            logs = normal(*(shape[d] for d in has), seed=n, scale=20)
            logs = np.where(np.random.default_rng(n).random(logs.shape) < 0.5, np.float32(-np.inf), logs)
            copies.append([normal(*shape, dtype=dtype, seed=n), np.asarray(logs, F32)])
        both_merges("logsumexp", copies, (tuple(range(len(shape))), has), max(TOLERANCE[dtype], 2e-6), strided)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, I32], ids=str)
def test_ranked_values_are_aggregated(dtype, strided):
    lists = []
    for n in range(3):
        values = np.round(normal(4, 6, dtype=F32, seed=n)).astype(dtype)
        out = [np.empty((4, 3), dtype), np.empty((4, 3), I64)]
        kernel = registry.prepare(
            Invocation("topk", {"axis": 1}, [values], out, blocks([values], [(0, 6 * n)]), blocks(out))
        )
        kernel.bind(np.empty(0, np.uint8))()
        lists.append(out)
    lists[1][0][2] = -np.inf if dtype.kind != "i" else np.iinfo(dtype).min  # an empty list
    lists[1][1][2] = np.iinfo(I64).max
    both_merges("topk", lists, ((0, 1), (0, 1)), 0, strided)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("name", AGGREGATE_CASES)
def test_aggregations_of_a_model(name, dtype):
    """In the interpreter, as the CPU computes them; of many index vectors in shares."""
    if dtype not in AGGREGATE_CASES[name].dtypes:
        return
    operator = AGGREGATE_CASES[name].operator(dtype)
    arrays = AGGREGATE_CASES[name].arrays(operator, 3)
    outputs = [np.empty(desc.shape, desc.dtype.numpy()) for desc in operator.outputs]
    attributes = dict(operator.kernel.attributes)
    tolerance = {"f32": 2e-5, "bf16": 4e-2}.get(dtype, 0)
    check("index", attributes, arrays, outputs, tolerance=tolerance)
    text, aggregation = str(operator.attributes["aggregation"]), operator.aggregations[0]
    copies = [[np.abs(normal(3, 40, seed=n) * 9 + 30).astype(x.dtype) for x in outputs] for n in range(3)]
    target = [np.empty_like(array) for array in copies[0]]
    flat, dims = [array for copy in copies for array in copy], [(0, 1)] * len(outputs)
    registry.prepare_joint_aggregation(JointInvocation(aggregation, flat, target, dims, text)).bind(np.empty(0, "u1"))()
    own = [embedded(array, 2) for array in flat]
    goal = own[: len(target)]
    plan = builders.build_joint_aggregation(JointInvocation(aggregation, views(own), views(goal), dims, text))
    run(plan.steps, plan.scratch)
    agree(goal, target, max(tolerance, 1e-5))


def test_the_kernel_of_a_package(spectra):
    """`energy` of docs/custom-operators.md."""
    signature = str(load_custom_operator("energy").signature)
    attributes = {"operator": "energy", "signature": signature, "settings": "{}"}
    for dtype in FLOATS:
        x, w = normal(5, 300, dtype=dtype), normal(300, dtype=dtype)
        check("custom", attributes, [x, w], [np.empty(5, dtype)], tolerance=1e-2 if dtype in (F16, BF16) else 1e-5)


RUNNING = {
    "along rows": ("y[r, i] = sum[k <= i](x[r, k])", (3, 1500)),
    "along columns": ("y[i, d] = min[k <= i](x[k, d])", (70, 5)),
    "from the end": ("y[r, i] = max[k >= i](x[r, k])", (3, 1100)),
    "further": ("y[r, i = 9] = prod[k <= i + 3](x[r, k] * 0.5 + 1)", (2, 7)),
    "behind": ("y[r, i = 9] = sum[k <= i - 5](exp(x[r, k]))", (2, 70)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", RUNNING)
def test_running_aggregates(name, dtype):
    """In pieces, of which some have no values, or all of them."""
    text, (rows, columns) = RUNNING[name]
    graph = fuse(build(f"dim a = {rows}; dim b = {columns}\ninput x : {dtype}[a, b]\n{text}\noutput y", "m.ein"))
    (operator,) = (node.operator for node in graph.nodes)
    arrays = [normal(*desc.shape).astype(desc.dtype.numpy()) for desc in operator.inputs]
    outputs = [np.empty(desc.shape, desc.dtype.numpy()) for desc in operator.outputs]
    tolerance = {"f32": 2e-5, "bf16": 4e-2}[dtype]
    check("index", dict(operator.kernel.attributes), arrays, outputs, tolerance=tolerance)
