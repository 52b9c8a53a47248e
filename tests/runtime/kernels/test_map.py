"""map against plain numpy: every function and type, broadcasting, long chains, pieces."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pytest

from einc.core.tensor import DType
from einc.ops.evaluate import evaluate
from einc.ops.scalar import make_step
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.scalar_programs import ScalarInput
from tests.support.kernel_runs import BF16, F, apply, run

pytestmark = pytest.mark.usefixtures("provider", "piece")

X = np.concatenate([np.linspace(-30, 30, 1001), np.linspace(-1, 1, 302), [0.0, -0.0, 1e-30]])


UNARY = {
    "copy": lambda x: x,
    "neg": lambda x: -x,
    "abs": np.abs,
    "relu": lambda x: np.where(x > 0, x, 0),
    "gelu": np.vectorize(lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": lambda x: np.log(x),
    "sqrt": lambda x: np.sqrt(x),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float16", BF16, "float32", "float64"], ids=str)
@pytest.mark.parametrize("function", UNARY)
def test_unary_functions(function, dtype):
    x = X[:1303] if function not in ("log", "rsqrt", "sqrt") else np.abs(X[:1303]) + 1e-3
    if function == "exp":
        x = x / 3
    x = x.astype(dtype)
    with np.errstate(all="ignore"):
        expected = UNARY[function](x.astype("f8"))
    found = apply(f"t0 = {function} x0", x).astype("f8")
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-13}[np.dtype(dtype).name]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("piece", [1 << 15], indirect=True)
def test_gelu_is_accurate_in_f32_everywhere():
    x = np.concatenate([np.linspace(-20, 20, 200001), [-1e30, 1e30, np.inf, -np.inf]]).astype("f4")
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) if np.isfinite(v) else max(v, 0) for v in x.tolist()])
    found = apply("t0 = gelu x0", x).astype("f8")
    finite = np.isfinite(exact)
    error = np.abs(found[finite] - exact[finite])
    assert (error / np.maximum(1, np.abs(exact[finite]))).max() < 2e-7
    np.testing.assert_array_equal(found[~finite], exact[~finite])
    assert np.isnan(apply("t0 = gelu x0", np.array([np.nan], "f4")))[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f2", BF16, "f4", "f8"], ids=str)
def test_gelu_of_infinities_is_its_limit_here_and_in_the_reference(dtype):
    x = np.array([-np.inf, np.inf, -2000.0, np.nan]).astype(dtype)
    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}[x.dtype.name]
    reference = evaluate(make_step("gelu", ScalarInput(0)), [x], [DType(kind)])
    np.testing.assert_array_equal(apply("t0 = gelu x0", x).astype("f8"), [0, np.inf, 0, np.nan])
    np.testing.assert_array_equal(reference.astype("f8"), [0, np.inf, 0, np.nan])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", ["sigmoid", "silu", "tanh", "gelu", "gelu_tanh"])
def test_saturating_functions_stay_finite_at_extremes(function):
    x = np.array([-1e4, -200, -100, -90, 90, 100, 200, 1e4], "f4")
    found = apply(f"t0 = {function} x0", x)
    assert np.isfinite(found).all()
    assert found[0] in (0, -1)


BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "mod": np.mod, "pow": np.power, "max": np.maximum, "min": np.minimum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("function", BINARY)
def test_binary_functions(function, dtype):
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-9, 9, 501).astype(dtype) for _ in range(2))
    y[y == 0] = 3
    if function == "pow":
        x = np.abs(x) + 1
    if dtype.startswith("int") and function in ("div", "pow"):
        with pytest.raises(PlanFault, match="does not take"):
            apply(f"t0 = {function} x0 x1", x, y)
        return
    expected = BINARY[function](x, y)
    np.testing.assert_allclose(
        apply(f"t0 = {function} x0 x1", x, y, out=(x.shape, expected.dtype)), expected, rtol=1e-6
    )


def test_integer_division_rounds_down_like_python():
    x, y = np.array([7, -7, 7, -7], "i4"), np.array([2, 2, -2, -2], "i4")
    assert apply("t0 = floordiv x0 x1", x, y).tolist() == [a // b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert apply("t0 = mod x0 x1", x, y).tolist() == [a % b for a, b in zip(x.tolist(), y.tolist(), strict=True)]


def test_logic_and_where():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert apply("t0 = and x0 x1; t1 = not t0", a, b).tolist() == [False, True, True, True]
    assert apply("t0 = or x0 x1", a, b).tolist() == [True, True, True, False]
    x = np.arange(4, dtype="f4")
    assert apply("t0 = where x0 x1 -1.5", a, x, out=(4, "f4")).tolist() == [0, 1, -1.5, -1.5]
    assert apply("t0 = eq x0 true", a, b).tolist() == a.tolist()
    assert apply("t0 = gt x0 1; t1 = where t0 x0 inf", x).tolist() == [np.inf, np.inf, 2, 3]


def test_casts():
    x = np.array([1.0004883, -2.7, 65000, 3], "f4")
    np.testing.assert_array_equal(apply("t0 = cast:f16 x0; t1 = mul t0 0.5", x, out=(4, "f2")), x.astype("f2") / 2)
    half = apply("t0 = cast:f16 x0; t1 = cast:f32 t0", x)
    np.testing.assert_array_equal(half, x.astype("f2").astype("f4"))
    np.testing.assert_array_equal(apply("t0 = cast:bf16 x0", x, out=(4, BF16)), x.astype(BF16))
    assert apply("t0 = cast:i32 x0", x, out=(4, "i4")).tolist() == [1, -2, 65000, 3]
    assert apply("t0 = cast:bool x0", np.array([0, 0.5], "f4"), out=(2, "?")).tolist() == [False, True]
    assert apply("t0 = gt x0 0.0; t1 = cast:i64 t0; t2 = add t1 5", x, out=(4, "i8")).tolist() == [6, 5, 6, 6]
    wide = np.array([1 + 2**-11 + 2**-40])
    assert apply("t0 = cast:f16 x0", wide, out=(1, "f2"))[0] == np.float16(1 + 2**-10)  # rounded once, not through f32


@pytest.mark.parametrize("dtype", ["float16", BF16], ids=str)
def test_chains_over_half_widths_round_once(dtype):
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(999).astype(dtype) for _ in range(2))
    found = apply("t0 = mul x0 x1; t1 = add t0 x0; t2 = mul t1 t1; t3 = sub t2 x1", x, y)
    a, b = x.astype("f4"), y.astype("f4")
    np.testing.assert_array_equal(found, ((a * b + a) * (a * b + a) - b).astype(dtype))


def test_broadcasting_and_transposing_by_index_names():
    rng = np.random.default_rng(2)
    x, y, z = rng.standard_normal((5, 7, 3)), rng.standard_normal((3,)), rng.standard_normal((7, 5))
    found = apply("t0 = mul x0 x1; t1 = add t0 x2", x, y, z, indices="i j k, k, j i -> k i j", out=((3, 5, 7), "f8"))
    np.testing.assert_allclose(found, (x * y + z.T[:, :, None]).transpose(2, 0, 1))
    np.testing.assert_array_equal(apply("t0 = copy x0", z, indices="j i -> i j", out=((5, 7), "f8")), z.T)
    np.testing.assert_array_equal(apply("t0 = copy x0", y, indices="k -> i k", out=((4, 3), "f8")), np.tile(y, (4, 1)))
    square = rng.standard_normal((6, 6))
    np.testing.assert_array_equal(apply("t0 = copy x0", square, indices="i i -> i", out=(6, "f8")), square.diagonal())
    one = apply("t0 = add x0 x1", np.array(2.0), np.array(3.0), indices=", -> ")
    assert one.shape == ()
    assert one == 5


def test_strided_views_in_and_out():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((20, 30)).astype("f4")
    base = np.zeros((20, 40), "f4")
    run(
        "map",
        {"program": "t0 = exp x0; t1 = add t0 x1", "indices": "i j, j -> i j"},
        [x[2:12, 5:25], x[0, 5:25]],
        base[5:15, 3:23],
    )
    np.testing.assert_allclose(base[5:15, 3:23], np.exp(x[2:12, 5:25]) + x[0, 5:25], rtol=1e-6, atol=2e-7)
    base[5:15, 3:23] = 0
    assert not base.any()


def test_random_programs():
    """Programs with long-lived values, evaluated by a second interpreter."""
    rng, pick = np.random.default_rng(9), random.Random(9)
    shapes = {"i j": (4, 9), "j": (9,), "i": (4,)}
    meaning = {"add": np.add, "mul": np.multiply, "max": np.maximum, "sub": np.subtract}
    for _ in range(60):
        names = [pick.choice(list(shapes)) for _ in range(3)] + ["i j"]
        arrays = [rng.standard_normal(shapes[n]) for n in names]
        full = [a.reshape(4, 1) if n == "i" else a for a, n in zip(arrays, names, strict=True)]
        steps, values = [], []
        for position in range(pick.randrange(1, 25)):
            words, known = [], []
            for _ in range(2):
                k = pick.randrange(len(full) + len(values) + 1)
                if k == len(full) + len(values) and known:
                    words.append("0.5")
                    known.append(0.5)
                else:
                    k = min(k, len(full) + len(values) - 1)
                    words.append(f"x{k}" if k < len(full) else f"t{k - len(full)}")
                    known.append((full + values)[k])
            if pick.random() < 0.15:
                steps.append(f"t{position} = copy {words[0]}")
                values.append(known[0])
            else:
                function = pick.choice(list(meaning))
                steps.append(f"t{position} = {function} {' '.join(words)}")
                values.append(
                    np.clip(meaning[function](*known), -1e9, 1e9) if function == "mul" else meaning[function](*known)
                )
        if not np.isfinite(values[-1]).all() or np.abs(values[-1]).max() > 1e8:
            continue
        found = apply("; ".join(steps), *arrays, indices=f"{', '.join(names)} -> i j", out=((4, 9), "f8"))
        np.testing.assert_allclose(found, np.broadcast_to(values[-1], (4, 9)), rtol=1e-9)


BAD_PROGRAMS = [
    ("", "step 0"), ("t1 = relu x0", "step 0"), ("t0 = relu", "step 0"), ("t0 = relu x0 x0", "takes 1"),
    ("t0 = relu x1", "'x1' is no operand"), ("t0 = relu t0", "'t0' is no operand"), ("t0 = relu i0", "'i0' is no"),
    ("t0 = eval x0", "unknown function 'eval'"), ("t0 = cast:f8 x0", "unknown function"),
    ("t0 = add x0 __import__('os')", "operand"), ("t0 = add x0 true", "literal true"),
    ("t0 = not x0", "not does not take f32"), ("t0 = and x0 x0", "does not take"),
    ("t0 = where x0 x0 x0", "condition"), ("t0 = copy 1.0", "must be a tensor"),
    ("t0 = relu x0;", "is no operand"), ("t0 = cast:i32 x0; t1 = add t0 1.5; t2 = cast:f32 t1", "literal 1.5"),
    ("; ".join(f"t{i} = relu x0" for i in range(5000)), "more than 4096"), ("t0 = relu x" + "9" * 500, "operand"),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "message"), BAD_PROGRAMS, ids=lambda value: str(value)[:30])
def test_bad_programs_are_refused_when_prepared(text, message):
    with pytest.raises(PlanFault, match=message):
        prepare(Invocation("map", {"program": text, "indices": "i j -> i j"}, [F], [F.copy()]))


def test_kernels_raise_no_warnings_under_the_executors_setting():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.array([-1e30, -100, 0, 100, 1e30, np.nan, np.inf], "f4")
        for function in UNARY:
            apply(f"t0 = {function} x0", x)
        apply("t0 = cast:i32 x0", x, out=(7, "i4"))
        apply("t0 = floordiv x0 x1", np.array([1, 2], "i4"), np.array([0, 0], "i4"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
@pytest.mark.parametrize("program", ["t0 = neg x0", "t0 = abs x0", "t0 = mul x0 x0", "t0 = max x0 3", "t0 = sign x0"])
def test_no_stride_of_an_input_or_a_result_makes_a_difference(program, dtype):
    """numpy has loops of its own for many pairs of strides, and some of its versions have wrong ones."""
    rng = np.random.default_rng(4)
    values = rng.integers(-5, 6, 23).astype(dtype)
    expected = {"neg": -values, "abs": abs(values), "mul": values * values, "max": np.maximum(values, 3)}
    expected["sign"] = np.sign(values)
    for step_in in range(1, 10):
        x = np.repeat(values, step_in).reshape(23, step_in)
        for step_out in (1, 2, 3, 4, 8):
            y = np.zeros((23, step_out), dtype)
            run("map", {"program": program, "indices": "i -> i"}, [x[:, 0]], y[:, 0])
            np.testing.assert_array_equal(y[:, 0], expected[program.split()[2]])
