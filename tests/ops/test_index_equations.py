"""Index equations against brute force over every index vector, and against numpy's own contractions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.tensor import DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops import registry
from einc.ops.equation import Equation, build_equation
from einc.ops.scalar import make_step
from einc_runtime.plan.scalar_programs import ScalarInput, ScalarProgram
from tests.support.block_slices import slices
from tests.support.definition_oracle import fault, random_array, requests
from tests.support.property_examples import examples

PYTHON = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "max": max, "min": min}
COMBINE = {"sum": sum, "max": max, "min": min, "prod": math.prod}


@st.composite
def equations(draw: st.DrawFn) -> Equation:
    """Random joins of up to three i64 tensors, repeated indices and rank 0 included."""
    extents = {name: draw(st.integers(1, 4)) for name in "ijkl"}
    labels = draw(st.lists(st.lists(st.sampled_from("ijkl"), max_size=3), min_size=1, max_size=3))
    present = sorted({name for part in labels for name in part})
    result = draw(st.permutations(draw(st.lists(st.sampled_from(present), unique=True)) if present else []))
    steps, last = [], "x0"
    for k in range(1, len(labels)):
        steps.append(f"t{k - 1} = {draw(st.sampled_from(sorted(PYTHON)))} {last} x{k}")
        last = f"t{k - 1}"
    inputs, windows = [], []
    for part in labels:
        starts = tuple(draw(st.integers(0, 2)) for _ in part) if draw(st.booleans()) else (0,) * len(part)
        box = TensorType(starts, tuple(start + extents[n] for start, n in zip(starts, part, strict=True)))
        beyond = draw(st.integers(0, 1)) if any(starts) else 0
        inputs.append((TensorDesc(tuple(part), tuple(up + beyond for up in box.upper), DType.I64), tuple(part)))
        windows.append(box)
    operator = build_equation(
        inputs,
        [(name, name) for name in result],
        ScalarProgram.parse("; ".join(steps) or "t0 = copy x0", len(labels)),
        draw(st.sampled_from(["sum", "max", "min", "prod"])),
        tuple(windows),
    )
    assert isinstance(operator, Equation)
    return operator


def brute_force(operator: Equation, arrays: list[np.ndarray]) -> np.ndarray:
    arrays = [array[slices(box)] for array, box in zip(arrays, operator.reads, strict=True)]
    extents = {
        name: extent
        for labels, array in zip(operator.labels, arrays, strict=True)
        for name, extent in zip(labels, array.shape, strict=True)
    }
    gathered: dict[tuple[int, ...], list[int]] = {}
    for vector in itertools.product(*map(range, extents.values())):
        at = dict(zip(extents, vector, strict=True))
        values = [int(a[tuple(at[n] for n in part)]) for part, a in zip(operator.labels, arrays, strict=True)]
        results: list[int] = []
        for step in operator.program.steps:
            operands = [
                values[x.position] if isinstance(x, ScalarInput) else results[x.position] for x in step.operands
            ]
            results.append(operands[0] if step.function == "copy" else PYTHON[step.function](*operands))
        gathered.setdefault(tuple(at[name] for name in operator.result), []).append(results[-1])
    expected = np.zeros(operator.outputs[0].shape, np.int64)
    for where, values in gathered.items():
        combined = COMBINE[operator.aggregation or "sum"](values)
        expected[where] = (combined + 2**63) % 2**64 - 2**63  # as 64-bit integers wrap around
    return expected


@examples(150)
@given(equations(), st.integers(0, 2**32 - 1))
def test_random_equations_mean_what_they_say_whole_and_in_parts(operator: Equation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-2, 3, desc.shape) for desc in operator.inputs]
    expected = brute_force(operator, arrays)
    np.testing.assert_array_equal(operator.reference(*arrays)[0], expected)
    assert registry.restore(operator.family, operator.inputs, dict(operator.attributes)) == operator
    for intervals in requests(operator, 4):
        assert fault(operator, operator.build_spec(intervals), arrays, [expected]) is None


def test_references_agree_with_numpy() -> None:
    rng = np.random.default_rng(5)
    a, b, v = rng.normal(size=(3, 5, 7)), rng.normal(size=(3, 7, 4)), rng.normal(size=(7,))
    descs = [
        TensorDesc(tuple(f"{name}{d}" for d in range(array.ndim)), array.shape, DType.F64)
        for name, array in (("a", a), ("b", b), ("v", v))
    ]
    (result,) = registry.call("matmul", descs[:2], {}).reference(a, b)
    np.testing.assert_allclose(result, a @ b, rtol=1e-13)
    contraction = build_equation(
        [(descs[0], ("h", "t", "d")), (descs[1], ("h", "d", "e")), (descs[2], ("d",))],
        [("e", "e"), ("t", "t")],
        ScalarProgram.parse("t0 = mul x0 x1; t1 = mul t0 x2", 3),
        "sum",
    )
    np.testing.assert_allclose(contraction.reference(a, b, v)[0], ((a * v) @ b).sum(0).T, rtol=1e-12)
    distance = build_equation(
        [(descs[0], ("h", "t", "d")), (descs[2], ("d",))],
        [("t", "t"), ("h", "h")],
        ScalarProgram.parse("t0 = sub x0 x1; t1 = mul t0 t0", 2),
        "max",
    )
    np.testing.assert_array_equal(distance.reference(a, v)[0], np.square(a - v).max(axis=2).T)


def test_sixteen_bit_contractions_accumulate_in_f32() -> None:
    n = 4096
    factors = np.ones((1, n), np.float16)
    x, w = TensorDesc(("t", "d"), (1, n), DType.F16), TensorDesc(("d", "f"), (n, 1), DType.F16)
    assert registry.call("matmul", [x, w], {}).reference(factors, factors.T)[0].tolist() == [[n]]
    assert registry.call("sum", [x, "d"], {}).reference(factors)[0].tolist() == [n]


def test_indices_stand_in_the_order_of_the_papers_examples() -> None:
    x, w = TensorDesc(("t", "d"), (256, 512), DType.F32), TensorDesc(("d", "f"), (512, 128), DType.F32)
    operator = registry.call("matmul", [x, w], {})
    assert [(index.name, index.extent, index.cuts) for index in operator.indices] == [
        ("i", 256, None), ("j", 512, None), ("k", 128, None),
    ]  # fmt: skip
    assert operator.outputs == (TensorDesc(("t", "f"), (256, 128), DType.F32),)
    assert (operator.fan_in(0), operator.fan_in(1), operator.aggregations) == (512, 512, ("sum",))
    undivided = operator.build_spec((((0, 256),), ((0, 512),), ((0, 128),))).functions[0]
    assert operator.flops(undivided) == 2 * 256 * 512 * 128
    bias = registry.call("add", [w, TensorDesc(("f",), (128,), DType.F32)], {})
    assert [index.name for index in bias.indices] == ["d", "f"]


def test_names_that_clash_are_told_apart() -> None:
    square = TensorDesc(("n", "n"), (5, 5), DType.F32)
    operator = registry.call("matmul", [square, square], {})
    assert operator.outputs[0].dims == ("n", "n_2")
    added = registry.call("add", [square, square], {})
    assert added.outputs[0].dims == ("n", "n")
    assert [index.name for index in added.indices] == ["n", "n_2"]


F32 = DType.F32
X, W = TensorDesc(("t", "d"), (3, 4), F32), TensorDesc(("d", "f"), (4, 5), F32)


@pytest.mark.parametrize(
    ("inputs", "result", "aggregation", "word", "argument"),
    [
        ([(X, ("i",))], "i", None, "one index per dimension", 0),
        ([(X, ("i", "j")), (W, ("i", "k"))], "k", "sum", "extent", 1),
        ([(X, ("i", "j"))], "i k", None, "extent is unknown", None),
        ([(X, ("i", "j"))], "i j i", None, "once", None),
        ([(X, ("i", "j"))], "i", None, "sum[j]", None),
        ([(X, ("i", "j"))], "i", "mean", "sum, max", None),
        ([(X, ("i j", "k"))], "k", "sum", "letters", 0),
        ([(TensorDesc(("t",), (3,), DType.BOOL), ("i",))], "", "sum", "cast", None),
        ([(X, ("i", "j")), (TensorDesc(("d",), (4,), DType.F16), ("j",))], "i", "sum", "cast", 1),
        ([], "", None, None, None),
    ],
)
def test_faulty_equations(
    inputs: list, result: str, aggregation: str | None, word: str | None, argument: int | None
) -> None:
    program = (
        make_step("mul", ScalarInput(0), ScalarInput(1)) if len(inputs) == 2 else make_step("copy", ScalarInput(0))
    )
    with pytest.raises(OperatorError) as caught:
        build_equation(inputs, [(name, name) for name in result.split()], program, aggregation)
    assert caught.value.argument == argument
    assert word is None or word in str(caught.value.hint)


def test_random_arrays_are_asymmetric() -> None:
    array = random_array(TensorDesc(("a", "b"), (6, 6), F32), np.random.default_rng(0))
    assert not np.array_equal(array, array.T)
    assert len(np.unique(array)) == 36
