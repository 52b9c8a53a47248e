"""Sources of GPU kernels, run in numpy: every access is inside an operand, every result is written once, and results
are those of the CPU's kernels. Three golden sources show what sources look like."""

from __future__ import annotations

import ast
import builtins as python
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import Invocation, JointInvocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import KernelLaunch, as_layout
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.schema import Block
from tests.support.gpu_invocations import INVOCATIONS, JOINT_AGGREGATIONS, joint_launches
from tests.support.kernel_runs import concatenation, lookup
from tests.support.sampling import one_in
from tests.support.triton_in_numpy import Arena, Misuse, lines_of, run

GOLDEN = Path(__file__).with_name("golden_kernels.txt")
SHOWN = ("map that transposes", "reduce in shares", "attention in decoding")
BF16 = np.dtype(ml_dtypes.bfloat16)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-12}
RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """For each test by itself, whichever others run before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(11))


def normal(*shape, dtype="f4"):
    return RNG.normal(0.2, 1.2, shape).astype(dtype)


def zeros(*shape, dtype="f4"):
    return np.zeros(shape, dtype)


def bytes_of(*shape):
    return RNG.integers(0, 256, shape, np.uint8)


def powers(*shape):
    return RNG.integers(118, 128, shape, np.uint8).view(E8M0)


def scales_of(*shape):
    return RNG.normal(0.5, 0.2, shape).astype(ml_dtypes.float8_e4m3fn)


def attention(q_lens, k_lens, **changes):
    base = {"causal": True, "scale": 0.3, "q_lens": q_lens, "k_lens": k_lens, "window": 0, "extras": []}
    return {**base, **changes}


def attending(a, heads, kv_heads, d=8, dv=8, dtype="f4", extras=()):
    q, k = sum(a["q_lens"]), sum(a["k_lens"])
    wide = "f8" if dtype == "f8" else "f4"
    arrays = [
        normal(heads, q, d, dtype=dtype),
        normal(kv_heads, k, d, dtype=dtype),
        normal(kv_heads, k, dv, dtype=dtype),
    ]
    return "attention", a, [*arrays, *extras], [zeros(heads, q, dv, dtype=dtype), zeros(heads, q, dtype=wide)]


def mapped(program, indices, inputs, *shape, dtype="f4"):
    return "map", {"program": program, "indices": indices}, inputs, [zeros(*shape, dtype=dtype)]


def reduced(program, indices, aggregation, inputs, *shape, dtype="f4"):
    attributes = {"program": program, "indices": indices, "aggregation": aggregation}
    return "reduce", attributes, inputs, [zeros(*shape, dtype=dtype)]


def rounded(equation, tensor, rows, weight, channels, result, dtype="f4"):
    x = normal(*tensor, dtype=dtype)
    inputs, _, output = (part.split() for part in equation.replace("->", ",").split(","))
    largest = abs(x.astype("f8")).max(tuple(n for n, name in enumerate(inputs) if name not in output)).astype(dtype)
    assert largest.shape == rows
    operands = [x, largest, bytes_of(*weight).view("i1"), normal(*channels, dtype=dtype)]
    return "rounded_contract", {"equation": equation, "scale": 0.5}, operands, [zeros(*result, dtype=dtype)]


def rounded_floats(name, tensor, scales, group, dtype="f4"):
    form, x = STORED_FORMS[name], normal(*tensor, dtype=dtype)
    x[0] = 0
    width, depth = (scales or (48,))[0], tensor[1]
    values = (normal(width, depth) * 20).astype(storage_dtype("f8e4m3"))
    if form.values == "f4x2":
        values = bytes_of(width, depth // 2).view("V1")
    factors = {"f32": normal, "f8e8m0": powers, "f8e4m3": scales_of}[form.scales](*scales)
    largest = [abs(x).max(1)] * form.needs_largest(group)
    attributes = {"equation": "t k, n k -> t n", "scale": 0.5, **({"group": group} if group else {})}
    weight = [values, factors, *[np.float32(0.1)] * form.has_factor]
    return "rounded_contract", attributes, [x, *largest, *weight], [zeros(tensor[0], width, dtype=dtype)]


MASK = np.array([True, False, True, True, True, False, True, True, True, True, True])
SPANS = np.array([[0, 3]] * 3 + [[3, 9]] * 6 + [[9, 9]] * 2)
CASES = {
    "map": mapped("t0 = silu x0; t1 = mul t0 x1", "i j, i j -> i j", [normal(9, 33), normal(9, 33)], 9, 33),
    "map that transposes": mapped("t0 = mul x0 x1; t1 = gelu t0", "i j, j -> j i", [normal(9, 35), normal(35)], 35, 9),
    "map of three axes": mapped("t0 = sub x0 x1", "a b c, c b -> b a c", [normal(3, 5, 7), normal(7, 5)], 5, 3, 7),
    "map of 16 bits": mapped("t0 = add x0 1.5; t1 = tanh t0", "i -> i", [normal(999, dtype="f2")], 999, dtype="f2"),
    "map of bf16": mapped("t0 = gelu_tanh x0", "i j -> i j", [normal(7, 9, dtype=BF16)], 7, 9, dtype=BF16),
    "map of f64": mapped("t0 = gelu x0; t1 = pow t0 2.5", "i -> i", [abs(normal(300, dtype="f8"))], 300, dtype="f8"),
    "quotients": mapped("t0 = floordiv x0 x1; t1 = mod x0 x1; t2 = add t0 t1", "i, i -> i",
                        [np.arange(-9, 9, dtype="i4"), np.array([-4, 3, 1] * 6, "i4")], 18, dtype="i4"),
    "quotients of floats": mapped("t0 = floordiv x0 x1; t1 = mod x0 x1; t2 = add t0 t1", "i, i -> i",
                                  [normal(90), normal(90)], 90),
    "comparison": mapped("t0 = lt x0 x1; t1 = where t0 x0 x1; t2 = rsqrt t1", "i, i -> i",
                         [abs(normal(600)), abs(normal(600))], 600),
    "truth": mapped("t0 = not x0; t1 = or t0 x1", "i, i -> i", [MASK, MASK[::-1].copy()], 11, dtype="?"),
    "sum of rows": reduced("t0 = exp x0", "i j -> i", "sum", [normal(5, 700)], 5),
    "maximum in shares": reduced("t0 = abs x0", "i j -> j", "max", [normal(5000, 9)], 9),
    "product of columns": reduced("t0 = add x0 1.0", "i j k -> j", "prod", [normal(3, 5, 2)], 5),
    "sum of everything": reduced("t0 = copy x0", "i j -> ", "sum", [normal(37, 41)]),
    "min of a join": reduced("t0 = add x0 x1", "i j, j k -> i k", "min", [normal(6, 9), normal(9, 8)], 6, 8),
    "integers": ("contract", {"equation": "i k, k j -> i j"}, [np.arange(35, dtype="i4").reshape(5, 7),
                 np.arange(28, dtype="i4").reshape(7, 4)], [zeros(5, 4, dtype="i4")]),
    "dequantize": ("dequantize", {"group": 0}, [bytes_of(3, 5, 41).view("i1"), normal(3, 5), bytes_of(3, 5).view("i1")],
                   [zeros(3, 5, 41)]),
    "dequantize pairs": ("dequantize", {"group": 32}, [bytes_of(7, 48), normal(7, 3, dtype=BF16)],
                         [zeros(7, 96, dtype=BF16)]),
    "dequantize channels": ("dequantize", {"group": 0}, [bytes_of(3, 2, 9), normal(3, dtype="f2")],
                            [zeros(3, 2, 18, dtype="f2")]),
    "dequantize every float of 8 bits": ("dequantize", {"group": 32},
                                         [np.arange(256, dtype="u1").view(ml_dtypes.float8_e4m3fn).reshape(4, 64),
                                          normal(4, 2)], [zeros(4, 64)]),
    "dequantize wide floats of 8 bits": ("dequantize", {"group": 0},
                                         [np.arange(256, dtype="u1").view(ml_dtypes.float8_e5m2).reshape(4, 64),
                                          normal()], [zeros(4, 64, dtype=BF16)]),
    "product with floats of 8 bits": ("quantized_contract", {"equation": "t k, n k -> t n", "group": 32},
                                      [normal(5, 96, dtype="f2"), normal(41, 96).astype(ml_dtypes.float8_e4m3fn),
                                       normal(41, 3)], [zeros(5, 41, dtype="f2")]),
    "dequantize every pair of floats and power of two": (
        "dequantize", {"group": 32},
        [bytes_of(16, 256).view("V1"), np.arange(256, dtype="u1").view(E8M0).reshape(16, 16)], [zeros(16, 512)]),
    "product with mxfp4": ("quantized_contract", {"equation": "t k, n k -> t n", "group": 32},
                           [normal(5, 96, dtype=BF16), bytes_of(41, 48).view("V1"), powers(41, 3)],
                           [zeros(5, 41, dtype=BF16)]),
    "product with nvfp4": ("quantized_contract", {"equation": "t k, n k -> t n", "group": 16},
                           [normal(5, 96, dtype="f2"), bytes_of(41, 48).view("V1"), scales_of(41, 6), np.float32(0.1)],
                           [zeros(5, 41, dtype="f2")]),
    "product of many rows with nvfp4": (
        "quantized_contract", {"equation": "t k, n k -> n t", "group": 16},
        [normal(19, 32), bytes_of(7, 16).view("V1"), scales_of(7, 2), np.float32(-0.3)], [zeros(7, 19)]),
    "rounded": rounded("t k, n k -> t n", (5, 70), (5,), (41, 70), (41,), (5, 41)),
    "rounded heads": rounded("h t d, j h d -> j t", (2, 19, 35), (19,), (37, 2, 35), (37,), (37, 19), "f2"),
    "rounded batch": rounded("t e k, e f k -> e t f", (70, 3, 33), (70, 3), (3, 68, 33), (3, 68), (3, 70, 68)),
    "rounded row": rounded("k, e f k -> f e", (33,), (), (2, 3, 33), (2,), (3, 2), BF16),
    "rounded in f64": rounded("t k, n k -> t n", (3, 40), (3,), (1, 40), (1,), (3, 1), "f8"),
    "rounded floats": rounded_floats("f8e4m3", (5, 96), (48,), 0),
    "rounded floats of a tensor": rounded_floats("f8e4m3", (19, 48), (), 0, BF16),
    "rounded floats of odd rows": rounded_floats("f8e4m3", (3, 70), (41,), 0),
    "rounded floats of heads": ("rounded_contract", {"equation": "t k, h d k -> h t d"}, [
        np.tile(np.linspace(-1, 1, 48, dtype="f2"), (5, 1)), np.ones(5, "f2"),
        (normal(3, 16, 48) * 20).astype(ml_dtypes.float8_e4m3fn), normal(3, 16)], [zeros(3, 5, 16, dtype="f2")]),
    "rounded groups": rounded_floats("f8e4m3", (5, 192), (48, 2), 96),
    "rounded powers": rounded_floats("mxfp8", (3, 96), (37, 3), 32, "f2"),
    "rounded pairs": rounded_floats("mxfp4", (19, 64), (5, 2), 32),
    "rounded nvfp4": rounded_floats("nvfp4", (5, 96), (37, 6), 16, BF16),
    "softmax": ("softmax", {"axis": 1}, [normal(5, 33)], [zeros(5, 33)]),
    "softmax across": ("softmax", {"axis": 0}, [normal(40, 6)], [zeros(40, 6)]),
    "softmax of long rows": ("softmax", {"axis": 1}, [normal(2, 20000)], [zeros(2, 20000)]),
    "rmsnorm": ("rmsnorm", {"eps": 0.1, "offset": 1.0}, [normal(6, 50), normal(50)], [zeros(6, 50)]),
    "layernorm": ("layernorm", {"eps": 0.1}, [normal(6, 50), normal(50), normal(50)], [zeros(6, 50)]),
    "layernorm of long rows": ("layernorm", {"eps": 0.1}, [normal(2, 17000), normal(17000), normal(17000)],
                               [zeros(2, 17000)]),
    "rope": ("rope", {"theta": 100.0, "scaling": "none"}, [normal(3, 7, 10), np.arange(7)[::-1].copy()],
             [zeros(3, 7, 10)]),
    "rope of sequences": ("rope", {"theta": 100.0, "scaling": "none", "seq_lens": [4, 3]}, [normal(3, 7, 10)],
                          [zeros(3, 7, 10)]),
    "rows": (*lookup(np.empty(5), 13, 21), [np.array([3, 12, 0, 3, 7]), normal(13, 21)], [zeros(5, 21)]),
    "append": ("append", {"cache_lens": [6, 5], "new_lens": [1, 3]},
               [normal(2, 11, 9), normal(2, 4, 9), np.array([5, 0, 4, 4])], [zeros(2, 11, 9)]),
    "append to a part": ("append", {"cache_lens": [500, 5], "new_lens": [2, 3]},
                         [normal(2, 30, 9), normal(2, 2, 9), np.array([450, 7])], [zeros(2, 30, 9)],
                         [Block((0, 0, 0), (2, 30, 9)), Block((0, 0, 0), (2, 2, 9)), Block((0,), (2,))]),
    "rows of a part": (*lookup(np.empty(5), 20, 21), [np.array([3, 12, 0, 19, 7]), normal(8, 21)],
                       [zeros(5, 21)], [Block((0,), (5,)), Block((5, 0), (13, 21))]),
    "experts": ("expert_matmul", {"experts": 6}, [normal(70, 19), normal(6, 37, 19), RNG.integers(0, 5, (70, 2))],
                [zeros(70, 2, 37)]),
    "experts in a part": ("expert_matmul", {"experts": 9}, [normal(40, 3, 33), normal(4, 18, 33),
                          RNG.integers(0, 9, (40, 3))], [zeros(40, 3, 18)],
                          [Block((0, 0, 0), (40, 3, 33)), Block((3, 0, 0), (7, 18, 33)), Block((0, 0), (40, 3))]),
    "experts of 16 bits": ("expert_matmul", {"experts": 3},
                           [normal(60, 2, 40, dtype="f2"), normal(3, 70, 40, dtype="f2"),
                            RNG.integers(0, 3, (60, 2), "i4")], [zeros(60, 2, 70, dtype="f2")]),
    "few experts": ("expert_matmul", {"experts": 9}, [normal(5, 33), normal(4, 40, 33), RNG.integers(0, 9, (5, 3))],
                    [zeros(5, 3, 40)], [Block((0, 0), (5, 33)), Block((3, 0, 0), (7, 40, 33)), Block((0, 0), (5, 3))]),
    "stored experts": ("expert_matmul", {"experts": 6, "group": 16},
                       [normal(40, 2, 32, dtype=BF16), bytes_of(6, 37, 16).view("V1"), scales_of(6, 37, 2),
                        RNG.uniform(0.1, 1, 6).astype("f4"), RNG.integers(0, 6, (40, 2))],
                       [zeros(40, 2, 37, dtype=BF16)]),
    "few stored experts": ("expert_matmul", {"experts": 9, "group": 0},
                           [normal(5, 34), bytes_of(4, 40, 17), normal(4, 40), RNG.integers(0, 9, (5, 3))],
                           [zeros(5, 3, 40)], [Block((0, 0), (5, 34)), Block((3, 0, 0), (7, 40, 17)),
                                               Block((0, 0), (4, 40)), Block((0, 0), (5, 3))]),
    "concat": (*concatenation(0, (3, 9), (5, 9)), [normal(3, 9), normal(5, 9)], [zeros(8, 9)]),
    "concat inside": (*concatenation(1, (4, 3), (4, 5)), [normal(4, 3), normal(4, 5)], [zeros(4, 8)]),
    "reshape": ("reshape", {}, [normal(6, 4, 5)], [zeros(24, 5)]),
    "reshape anew": ("reshape", {}, [normal(12, 10)], [zeros(8, 15)]),
    "topk": ("topk", {"axis": 1}, [np.round(normal(4, 70))], [zeros(4, 6), zeros(4, 6, dtype="i8")]),
    "topk of few": ("topk", {"axis": 1}, [normal(4, 5)], [zeros(4, 6), zeros(4, 6, dtype="i8")]),
    "attention": attending(attention([40, 5], [40, 5]), 4, 2),
    "attention in a window": attending(attention([70, 9], [74, 9], window=6, softcap=3.0), 2, 1, d=24, dv=16),
    "attention to all": attending(attention([9], [50], causal=False), 2, 1, d=20, dv=12),
    "attention in decoding": attending(attention([1, 1], [700, 1500]), 4, 1, d=16, dv=16),
    "attention of 16 bits": attending(attention([9], [70]), 2, 2, d=16, dv=16, dtype="f2"),
    "attention of latent rows": attending(attention([3], [40]), 3, 1, d=520, dv=515),
    "attention of f64": attending(attention([9], [20], scale=-0.3), 2, 2, dtype="f8"),
    "attention with extras": attending(
        attention([11], [11], extras=["mask", "positions"]), 2, 2, extras=[MASK, np.arange(11)]),
    "attention in spans": attending(attention([11], [11], extras=["spans"]), 4, 2, extras=[SPANS]),
}  # fmt: skip


def copies(count, *shapes):
    return [normal(*shape) for _ in range(count) for shape in shapes]


JOINT = {
    "averages": ("logsumexp", copies(3, (4, 5, 7), (4, 5)), [zeros(4, 5, 7), zeros(4, 5)], ((0, 1, 2), (0, 1))),
    "lists": ("topk", [x for n in range(2) for x in (np.sort(np.round(normal(3, 4)))[:, ::-1],
                                                     np.arange(12).reshape(3, 4) + 12 * n)],
              [zeros(3, 4), zeros(3, 4, dtype="i8")], ((0, 1), (0, 1))),
}  # fmt: skip


def blocks(arrays):
    return [Block((0,) * array.ndim, array.shape) for array in arrays]


def require_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        if other.dtype.kind in "ib":
            assert np.array_equal(one, other)
            continue
        one, other, tolerance = one.astype("f8"), other.astype("f8"), TOLERANCE[other.dtype.name]
        finite = np.isfinite(other)
        assert np.array_equal(one[~finite], other[~finite], equal_nan=True)
        assert np.abs(one[finite] - other[finite]).max(initial=0) <= tolerance * np.abs(other[finite]).max(initial=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "step"), one_in(4, CASES, [1, 2]))
def test_sources_compute_what_the_kernels_of_the_cpu_do(name, step):
    kernel, attributes, inputs, outputs, *parts = CASES[name]
    bounds = parts[0] if parts else blocks(inputs), blocks(outputs)
    expected = [np.empty_like(output) for output in outputs]
    own = registry.prepare(Invocation(kernel, attributes, inputs, expected, *bounds), "numpy")
    with np.errstate(all="ignore"):
        own.bind(np.empty(own.scratch, np.uint8))()
    arena = Arena()
    reads = [arena.place(array, step) for array in inputs]
    writes = [arena.place(array, step, output=True) for array in outputs]
    views = ([as_layout(x) for x in arrays] for arrays in (reads, writes))
    sequence = builders.build_kernel(Invocation(kernel, attributes, *views, *bounds))
    assert run(sequence, arena) == 0
    require_close([arena.fetch(array) for array in writes], expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [1, 2], ids=["dense", "strided"])
@pytest.mark.parametrize(("heads", "new", "d", "places"), [(3, 1, 9, [5]), (2, 4, 40, [3, 0, 3, 3]), (1, 70, 1, None)])
def test_sources_of_append_in_place_write_the_last_of_equal_rows(heads, new, d, places, step):
    lens = {"cache_lens": [new + 9, 7], "new_lens": [new, 1], "in_place": True}
    cache, rows = normal(heads, new + 16, d), normal(heads, new + 1, d)
    positions = np.array([*(places or RNG.integers(0, new + 9, new)), 6])
    expected = cache.copy()
    for row, place in enumerate(positions):
        expected[:, place + (new + 9) * (row == new)] = rows[:, row]
    arena = Arena()
    given = [arena.place(array, step, output=array is cache) for array in (cache, rows, positions)]
    views = [as_layout(array) for array in given]
    bounds = blocks([cache, rows, positions]), blocks([cache])
    sequence = builders.build_kernel(Invocation("append", lens, views, views[:1], *bounds))
    assert run(sequence, arena) == 0
    assert np.array_equal(arena.fetch(given[0]), expected)


@pytest.mark.parametrize("name", JOINT)
def test_sources_of_joint_aggregations_compute_what_those_of_the_cpu_do(name):
    aggregation, reads, writes, dims = JOINT[name]
    reads = [np.ascontiguousarray(array) for array in reads]
    expected = [np.empty_like(array) for array in writes]
    own = registry.prepare_joint_aggregation(JointInvocation(aggregation, reads, expected, dims), "numpy")
    own.bind(np.empty(own.scratch, np.uint8))()
    arena = Arena()
    sources = [arena.place(array) for array in reads]
    targets = [arena.place(array, output=True) for array in writes]
    views = ([as_layout(x) for x in arrays] for arrays in (sources, targets))
    run(builders.build_joint_aggregation(JointInvocation(aggregation, *views, dims)), arena)
    require_close([arena.fetch(array) for array in targets], expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "place", "value"), [("rows", 0, 13), ("rows", 0, -1), ("rope", 1, -1),
                                                      ("experts", 2, 6), ("experts", 2, -1), ("few experts", 2, 9),
                                                      ("append", 2, 6), ("append", 2, -1)])  # fmt: skip
def test_a_value_that_no_input_may_have_sets_the_status_word(name, place, value):
    kernel, attributes, inputs, outputs, *parts = CASES[name]
    inputs = list(inputs)
    inputs[place] = inputs[place].copy()
    inputs[place][-1 if name != "append" else 0] = value
    arena = Arena()
    reads, writes = [arena.place(x) for x in inputs], [arena.place(x, output=True) for x in outputs]
    views = ([as_layout(x) for x in arrays] for arrays in (reads, writes))
    bounds = parts[0] if parts else blocks(inputs), blocks(outputs)
    sequence = builders.build_kernel(Invocation(kernel, attributes, *views, *bounds))
    assert sequence.status_message
    assert run(sequence, arena) != 0


@pytest.mark.parametrize("change", [("(c < 297)", "(c < 300)"), ("y + c,", "y + 0 * c,"), ("512)", "500)")])
def test_what_a_kernel_must_not_do_is_seen(change):
    """An access outside of operands, an element written twice, a tile that is no power of two."""
    arena = Arena()
    x, y = arena.place(normal(297)), arena.place(zeros(297), output=True)
    attributes = {"program": "t0 = copy x0", "indices": "i -> i"}
    sequence = builders.build_kernel(Invocation("map", attributes, [as_layout(x)], [as_layout(y)]))
    (launch,) = sequence.steps
    text = launch.source.text.replace("256", "512").replace(*change)
    broken = replace(launch, source=replace(launch.source, text=text))
    with pytest.raises(Misuse):
        run(replace(sequence, steps=(broken,)), arena)


def sequences():
    """The launches of every invocation of the table, by its name."""
    for name, one in INVOCATIONS.items():
        yield name, one.launches()
    for name in JOINT_AGGREGATIONS:
        yield name, joint_launches(name)


def launches():
    return [(name, step) for name, one in sequences() for step in one.steps if isinstance(step, KernelLaunch)]


def test_the_same_invocation_has_the_same_sources():
    assert [step.source for _, step in launches()] == [step.source for _, step in launches()]


def test_sources_are_python_of_pointers_alone():
    for name, step in launches():
        source = step.source
        tree = ast.parse(source.text)
        assert len(source.signature()) == len(step.arguments) == len(source.aligned), name
        assert step.grid >= 1
        known = {"tl", "triton", *dir(python), *(n.name for n in tree.body if isinstance(n, ast.FunctionDef))}
        for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
            own = {a.arg for a in function.args.args}
            assigned = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            assert used <= known | own | assigned, f"{name} uses {sorted(used - known - own - assigned)}"
            assert own <= used, f"{name} has an argument that nobody reads"


def test_operands_are_read_as_their_types_and_results_rounded_to_them():
    stored = {"f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64"}
    for name, step in launches():
        kinds = dict(zip(step.source.signature(), step.source.types, strict=True))
        for line in lines_of(step.source):
            target = re.match(r"tl\.store\((\w+)", line)
            if target and kinds.get(target[1]) in stored and "value_of" not in line:
                assert f".to({stored[kinds[target[1]]]})" in line, f"{name}: {line}"


def test_tiles_fit_into_registers_and_keep_multiprocessors_busy():
    """At most 128 elements of a tile for each thread, and as many programs as there is work for."""
    for name, step in launches():
        extents = [int(n) for n in re.findall(r"tl\.arange\(0, (\d+)\)", step.source.text)]
        assert extents or step.source.name.startswith(("attention", "move")), name
        assert all(n & (n - 1) == 0 for n in extents), name
        assert max(extents, default=1) <= 128 * 32 * step.source.warps, name
        assert step.source.warps in ((1, 2, 4, 8) if name.startswith("recurrence") else (4, 8, 16)), name
        assert step.grid < 1 << 31


@pytest.mark.parametrize(
    ("kernel", "elements", "programs"),
    [("map", 512 * 1792, 896), ("softmax", 800 * 1000, 400), ("rmsnorm", 512 * 4096, 512), ("reduce", 1024, 512)],
)
def test_large_operands_are_shared_out_among_programs(kernel, elements, programs):
    """Some thousand elements a program: fewer leave threads idle, more leave multiprocessors idle."""
    (step,) = INVOCATIONS[kernel].launches().steps
    assert step.grid == programs, f"{elements} elements"


def test_rows_are_read_once_where_they_fit_into_registers():
    for name, loads in (("softmax", 1), ("softmax of long rows", 2), ("rmsnorm", 2), ("layernorm", 3)):
        (step,) = INVOCATIONS[name].launches().steps
        assert step.source.text.count("tl.load(") == loads, name


def test_three_golden_sources(update_golden):
    """The first launch of each; `make golden` rewrites them, and the difference shows what a change does to kernels."""
    parts = []
    for name in SHOWN:
        step = INVOCATIONS[name].launches().steps[0]
        parts.append(f"# {name}: {step.grid} programs, {step.source.warps} warps, {step.source.stages} stages\n")
        parts.append(step.source.text + "\n")
    text = "".join(parts)
    if update_golden:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
