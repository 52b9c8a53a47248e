"""Scalar programs: text, types, composition; and their evaluation against other implementations."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from einc.core.tensor import DType
from einc.errors import OperatorError
from einc.ops.evaluate import evaluate
from einc.ops.functions import fit_literal
from einc.ops.scalar import ProgramBuilder, compose, make_step, merge_inputs, parse_program, resolve_program
from einc_runtime.plan.scalar_functions import SCALAR_FUNCTIONS
from einc_runtime.plan.scalar_programs import EarlierStep, FunctionStep, ScalarInput, ScalarLiteral, ScalarProgram

F = DType.F64
FLOAT_FUNCTIONS = [
    name
    for name, s in SCALAR_FUNCTIONS.items()
    if F.value in s.accepts and s.result is None and name not in ("where", "pow")
]


@st.composite
def programs(draw: st.DrawFn, arity: int | None = None) -> ScalarProgram:
    """Well-typed programs over f64."""
    inputs = draw(st.integers(1, 3)) if arity is None else arity
    steps: list[FunctionStep] = []
    for position in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(FLOAT_FUNCTIONS))
        places = [ScalarInput(k) for k in range(inputs)] + [EarlierStep(i) for i in range(position)]
        operands = [draw(st.sampled_from(places)) for _ in range(SCALAR_FUNCTIONS[name].arity)]
        if len(operands) == 2 and draw(st.booleans()):
            value = draw(st.floats(allow_nan=False, width=32) | st.just(math.inf))
            operands[draw(st.integers(0, 1))] = ScalarLiteral.of(value)
        steps.append(FunctionStep(name, tuple(operands)))
    return ScalarProgram(inputs, tuple(steps))


def run(program: ScalarProgram, arrays: list[np.ndarray]) -> np.ndarray:
    return evaluate(program, arrays, [F] * len(arrays))


@given(programs())
def test_parse_reads_what_text_prints(program: ScalarProgram) -> None:
    assert ScalarProgram.parse(program.text, program.arity) == program


@given(programs(), programs(), st.integers(0, 2), st.integers(0, 99))
def test_a_composition_computes_one_after_the_other(
    consumer: ScalarProgram, producer: ScalarProgram, k: int, seed: int
) -> None:
    k %= consumer.arity
    rng = np.random.default_rng(seed)
    inner = [rng.normal(size=5) for _ in range(producer.arity)]
    outer = [rng.normal(size=5) for _ in range(consumer.arity)]
    outer[k] = run(producer, inner)
    together = run(compose(consumer, k, producer, None), outer[:k] + inner + outer[k + 1 :])
    np.testing.assert_array_equal(together, run(consumer, outer))


@given(programs(arity=3), st.sampled_from([(0, 1), (0, 2), (1, 2)]), st.integers(0, 99))
def test_merged_inputs_read_one_tensor(program: ScalarProgram, pair: tuple[int, int], seed: int) -> None:
    first, second = pair
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=5) for _ in range(3)]
    arrays[second] = arrays[first]
    merged = merge_inputs(program, first, second)
    assert merged.arity == 2
    np.testing.assert_array_equal(run(merged, arrays[:second] + arrays[second + 1 :]), run(program, arrays))


def test_composition_shares_steps_and_keeps_signed_zeros_apart() -> None:
    diamond = compose(make_step("add", ScalarInput(0), ScalarInput(1)), 1, make_step("exp", ScalarInput(0)), None)
    diamond = compose(diamond, 0, make_step("exp", ScalarInput(0)), None)
    assert merge_inputs(diamond, 0, 1).text == "t0 = exp x0; t1 = add t0 t0"
    builder = ProgramBuilder(1)
    sum_ = builder.add("add", builder.add("div", ScalarInput(0), 0.0), builder.add("div", ScalarInput(0), -0.0))
    assert builder.program(sum_).text == "t0 = div x0 0.0; t1 = div x0 -0.0; t2 = add t0 t1"


def test_the_builder_leaves_out_copies_and_what_the_result_does_not_need() -> None:
    builder = ProgramBuilder(2)
    builder.add("exp", ScalarInput(1))
    kept = builder.add("neg", builder.add("copy", ScalarInput(0)))
    builder.add("log", kept)
    assert builder.program(kept).text == "t0 = neg x0"
    assert builder.program(ScalarInput(1)).text == "t0 = copy x1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t0 = ",
        "t0 = nothing x0",
        "t1 = neg x0",
        "t0 = neg x2",
        "t0 = neg t0",
        "t0 = add x0 t1; t1 = neg x0",
        "t0 = add x0",
        "t0 = neg x0 x1",
        "t0 = add x0 1_000",
        "t0 = add x0 y",
        "t0 = add x0 " + "9" * 5000,
        "t0 = add x0 99999999999999999999999999",
        "t0 = neg x99999999999",
        "t0 = neg x٣",
        "t0 = neg x0;",
        "t0 := neg x0",
        "t0 = cast:f8 x0",
    ],
)
def test_bad_texts_are_refused(text: str) -> None:
    with pytest.raises(OperatorError):
        parse_program(text, 2)


def test_literals_are_told_apart_by_kind() -> None:
    texts = [ScalarLiteral.of(value).text for value in (1, 1.0, True, -0.0, math.inf, 1e-5)]
    assert texts == ["1", "1.0", "true", "-0.0", "inf", "1e-05"]
    assert ScalarLiteral.of(1) != ScalarLiteral.of(True)
    assert [type(ScalarLiteral(text).value) for text in texts] == [int, float, bool, float, float, float]


@pytest.mark.parametrize(
    ("function", "operands", "argument"),
    [
        ("add", [DType.F32, DType.F16], 1),
        ("where", [DType.F32, DType.F32, DType.F32], 0),
        ("where", [DType.BOOL, DType.F32, DType.I32], 2),
        ("add", [DType.BOOL, DType.BOOL], 0),
        ("not", [DType.I32], 0),
        ("exp", [DType.I64], 0),
        ("div", [DType.I32, DType.I32], 0),
        ("lt", [DType.BOOL, DType.BOOL], 0),
    ],
)
def test_mixed_and_unfit_types_name_the_input(function: str, operands: list[DType], argument: int) -> None:
    with pytest.raises(OperatorError) as caught:
        resolve_program(make_step(function, *map(ScalarInput, range(len(operands)))), operands)
    assert caught.value.argument == argument
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, DType.I32), (2.0, DType.I64), (2**31, DType.I32), (-(2**63) - 1, DType.I64), (True, DType.I32),
        (True, DType.F32), (1, DType.BOOL), (0.0, DType.BOOL), (70000, DType.F16), (65520.0, DType.F16),
        (1e39, DType.F32), (3.4e38, DType.BF16), (-3.4e38, DType.BF16), (10**400, DType.F64),
    ],
)  # fmt: skip
def test_literals_that_do_not_fit(value: float, dtype: DType) -> None:
    with pytest.raises(OperatorError):
        fit_literal(value, dtype)


def test_literals_take_the_type_beside_them() -> None:
    literals = ScalarProgram.parse("t0 = add x0 1; t1 = gt t0 0.1; t2 = where t1 t0 0.1", 1)
    program, types = resolve_program(literals, [DType.F16])
    assert program.text == "t0 = add x0 1.0; t1 = gt t0 0.0999755859375; t2 = where t1 t0 0.0999755859375"
    assert types == (DType.F16, DType.BOOL, DType.F16)


@given(st.floats(width=32))
def test_literals_round_as_numpy_does(value: float) -> None:
    for dtype, numpy_type in ((DType.F16, np.float16), (DType.BF16, ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            expected = float(np.float32(value).astype(numpy_type))
        if math.isinf(expected) and not math.isinf(value):
            with pytest.raises(OperatorError):
                fit_literal(value, dtype)
        else:
            assert struct.pack("<d", fit_literal(value, dtype)) == struct.pack("<d", expected) or math.isnan(value)


REFERENCES = {
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "gelu_tanh": lambda x: x * scipy.special.expit(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * scipy.special.expit(x),
    "sigmoid": scipy.special.expit,
    "tanh": lambda x: 1 - 2 * scipy.special.expit(-2 * x),
    "rsqrt": lambda x: x**-0.5,
    "relu": lambda x: np.where(x > 0, x, 0),
    "abs": lambda x: np.where(x > 0, x, -x),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_agree_with_scipy(name: str) -> None:
    x = np.linspace(0.01 if name == "rsqrt" else -30, 30, 1001)
    np.testing.assert_allclose(run(make_step(name, ScalarInput(0)), [x]), REFERENCES[name](x), rtol=1e-12, atol=1e-14)


def test_division_and_remainder_floor_as_in_python() -> None:
    pairs = [(a, b) for a in range(-7, 8) for b in (-3, -2, 2, 5)]
    a, b = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    for name, python in (("floordiv", lambda u, v: u // v), ("mod", lambda u, v: u % v)):
        result = evaluate(make_step(name, ScalarInput(0), ScalarInput(1)), [a, b], [DType.I32, DType.I32])
        assert result.tolist() == [python(u, v) for u, v in pairs]
        result = evaluate(
            make_step(name, ScalarInput(0), ScalarInput(1)),
            [a.astype("f4"), b.astype("f4")],
            [DType.F32, DType.F32],
        )
        assert result.tolist() == [python(float(u), float(v)) for u, v in pairs]


def test_sixteen_bit_chains_round_at_casts_only() -> None:
    x = np.array([1.0], np.float16)
    small = 2.0**-12
    chain = f"t0 = add x0 {small}; t1 = sub t0 1.0"
    assert evaluate(ScalarProgram.parse(chain, 1), [x], [DType.F16]).tolist() == [small]
    rounded = f"t0 = add x0 {small}; t1 = cast:f16 t0; t2 = sub t1 1.0"
    assert evaluate(ScalarProgram.parse(rounded, 1), [x], [DType.F16]).tolist() == [0.0]
