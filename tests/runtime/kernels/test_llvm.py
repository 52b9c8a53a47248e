"""Compiled kernels: their errors, that they write nothing else, and when numpy is used instead."""

from __future__ import annotations

import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.contract import prepare_copy
from einc_runtime.kernels.registry import PROVIDERS, prepare
from tests.support.property_examples import examples

needs_llvm = pytest.mark.skipif(
    not compiler.is_available(), reason="llvmlite is not installed, or not for this processor"
)
BF16 = np.dtype(ml_dtypes.bfloat16)
FUNCTIONS = {
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "gelu_tanh": lambda x: x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
ULPS = {"exp": 2, "tanh": 4, "sigmoid": 2, "silu": 3, "sqrt": 0.5, "rsqrt": 1.5, "gelu_tanh": 4}
DOUBLED = {"program": "t0 = add x0 x0", "indices": "i j -> i j"}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38, -3.4e38, 88.7, 88.8, 89.0, -87.3, -87.4, -200.0]


def bound(kernel: Kernel):
    return kernel.bind(np.zeros(kernel.scratch + 64, np.uint8))


def mapped(program: str, *inputs: np.ndarray, dtype=np.float32) -> np.ndarray:
    output = np.full(inputs[0].shape, 7, dtype)
    names = " ".join(f"i{axis}" for axis in range(output.ndim))
    indices = f"{', '.join([names] * len(inputs))} -> {names}"
    run = bound(prepare(Invocation("map", {"program": program, "indices": indices}, inputs, [output])))
    assert isinstance(run, compiler.CompiledCall)
    run()
    return output


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)


@needs_llvm
@pytest.mark.parametrize("function", FUNCTIONS)
def test_errors_of_functions_are_within_their_bounds(function, always):
    rng = np.random.default_rng(0)
    wide = np.concatenate([rng.uniform(-100, 88.7, 200_000), rng.normal(0, 1, 200_000), rng.normal(0, 1e-3, 50_000)])
    x = wide.astype("f4")
    if function in ("sqrt", "rsqrt"):
        x = np.abs(x) + np.float32(1e-30)
    found = mapped(f"t0 = {function} x0", x).astype("f8")
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[function](x.astype("f8"))
    normal = np.abs(exact) > 1e-36
    unit = np.spacing(np.abs(x if function == "gelu_tanh" else exact).astype("f4")).astype("f8")
    ulps = (np.abs(found - exact) / unit)[normal]
    assert ulps.max() <= ULPS[function] + 0.5
    assert np.abs(found - exact)[~normal].max(initial=0) <= 1e-36


@needs_llvm
@pytest.mark.parametrize(
    "function", ["exp", "tanh", "sigmoid", "silu", "relu", "neg", "abs", "sqrt", "gelu", "gelu_tanh"]
)
def test_infinities_and_not_a_numbers_are_those_of_numpy(function, always):
    x = np.array(SPECIAL * 3, "f4")
    expected = np.empty_like(x)
    attributes = {"program": f"t0 = {function} x0", "indices": "i -> i"}
    with np.errstate(all="ignore"):
        bound(prepare(Invocation("map", attributes, [x], [expected]), provider="numpy"))()
    found = mapped(attributes["program"], x)
    if function == "gelu_tanh":  # numpy's own overflows on the way for the largest numbers
        huge = np.abs(x) == np.float32(3.4e38)
        expected[huge] = np.maximum(x[huge], 0)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-38)


@needs_llvm
def test_the_larger_of_a_number_and_not_a_number_is_not_a_number(always):
    values = np.array([1, np.nan, -np.inf, 0, np.inf, -3] * 6, "f4")
    x, y = np.repeat(values, 36), np.tile(values, 36)
    np.testing.assert_array_equal(mapped("t0 = max x0 x1", x, y), np.maximum(x, y))
    np.testing.assert_array_equal(mapped("t0 = min x0 x1", x, y), np.minimum(x, y))
    np.testing.assert_array_equal(mapped("t0 = ne x0 x1", x, y, dtype=np.bool_), x != y)
    np.testing.assert_array_equal(mapped("t0 = le x0 x1", x, y, dtype=np.bool_), x <= y)


@needs_llvm
@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_every_16_bit_float_is_widened_exactly_and_comes_back(dtype, always):
    every = np.arange(1 << 16, dtype="u2").view(dtype)
    wide = np.empty(every.shape, "f4")
    function, arguments = prepare_copy(every, wide)
    assert isinstance(function, compiler.CompiledCall)
    function(*arguments)
    np.testing.assert_array_equal(wide, every.astype("f4"))
    back = np.empty_like(every)
    function, arguments = prepare_copy(wide, back)
    function(*arguments)
    numbers = ~np.isnan(wide)
    assert np.array_equal(back.view("u2")[numbers], every.view("u2")[numbers])
    assert np.isnan(back[~numbers].astype("f4")).all()


@needs_llvm
@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_rounding_is_to_nearest_and_ties_to_even(dtype, always):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 1 << 18, dtype="u4").view("f4")
    x[: 1 << 16] = (np.arange(1 << 16, dtype="u4") << 16 | 0x8000).view("f4")  # halfway between two bf16
    found = np.empty(x.shape, dtype)
    function, arguments = prepare_copy(x, found)
    function(*arguments)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.astype("f4"), x.astype(dtype).astype("f4"))


@needs_llvm
@examples(40)
@given(
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(0, 3),
    st.sampled_from(["f4", "f2", BF16]),
    st.integers(0, 2**32 - 1),
)
def test_nothing_beyond_an_odd_view_is_written(rows, columns, shift, dtype, seed):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows + 2, columns + 7)).astype(dtype)
    x = rng.standard_normal((rows, columns + shift)).astype(dtype)[:, shift:]
    before = base.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0)
        target = base[1:-1, shift : shift + columns]
        run = bound(prepare(Invocation("map", DOUBLED, [x], [target])))
    run()
    np.testing.assert_array_equal(target.astype("f4"), (x.astype("f4") * 2).astype(dtype).astype("f4"))
    base[1:-1, shift : shift + columns] = before[1:-1, shift : shift + columns]
    assert np.array_equal(base.view(np.uint8), before.view(np.uint8))


@needs_llvm
def test_a_sum_may_be_written_over_its_first_copy(always):
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal((40, 33)).astype("f4") for _ in range(2))
    expected = x + y
    bound(prepare(Invocation("map", {"program": "t0 = add x0 x1", "indices": "i j, i j -> i j"}, [x, y], [x])))()
    np.testing.assert_array_equal(x, expected)


@needs_llvm
def test_results_are_the_same_in_every_run_and_thread_and_at_every_address(always):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((37, 1003)).astype("f4")
    gain = rng.standard_normal(1003).astype("f4")
    results = []

    def compute(shift: int) -> None:
        memory = np.empty(rows.size + 16, "f4")
        x = memory[shift : shift + rows.size].reshape(rows.shape)
        x[...] = rows
        out = np.empty_like(rows)
        for name, inputs, attributes in (("rmsnorm", [x, gain], {"eps": 1e-5}), ("softmax", [x], {"axis": 1})):
            bound(prepare(Invocation(name, attributes, inputs, [out]), provider="llvm"))()
            results.append((name, out.tobytes()))

    threads = [threading.Thread(target=compute, args=(shift,)) for shift in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    assert len(set(results)) == 2


@pytest.mark.parametrize(
    ("program", "inputs", "output"),
    [
        ("t0 = add x0 x0", np.ones((8, 40)), np.empty((8, 40))),
        ("t0 = log x0", np.ones((8, 40), "f4"), np.empty((8, 40), "f4")),
        ("t0 = copy x0", np.ones((40, 8), "f4").T, np.empty((8, 40), "f4")),
    ],
    ids=["f64", "log", "transpose"],
)
def test_numpy_computes_what_has_no_machine_code(program, inputs, output, always):
    run = bound(prepare(Invocation("map", {"program": program, "indices": "i j -> i j"}, [inputs], [output])))
    assert not isinstance(run, compiler.CompiledCall)
    run()
    assert np.array_equal(output, {"l": np.log, "a": lambda x: x + x, "c": np.copy}[program[5]](inputs))


def test_numpy_has_every_kernel_that_llvm_has():
    assert set(PROVIDERS["llvm"]) <= set(PROVIDERS["numpy"])


def test_small_invocations_do_not_load_llvm():
    code = (
        "import sys, numpy as np\n"
        "from einc_runtime.kernels.registry import prepare\n"
        "x = np.ones((16, 16), 'f4')\n"
        "from einc_runtime.kernels.base import Invocation\n"
        "prepare(Invocation('map', {'program': 't0 = exp x0', 'indices': 'i j -> i j'}, [x], [x.copy()]))\n"
        "assert not any(name.startswith('llvmlite') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_llvm_numpy_computes_everything():
    code = (
        "import sys, numpy as np\n"
        "from importlib import import_module\n"
        "sys.modules['llvmlite'] = None\n"
        "from einc_runtime.kernels.llvm import compiler\n"
        "from einc_runtime.kernels.registry import PROVIDERS, REPRODUCIBLE, prepare\n"
        "for module, _ in (*PROVIDERS['llvm'].values(), *REPRODUCIBLE.values()):\n"
        "    import_module(module)\n"
        "x, y = np.full((300, 300), 2, 'f4'), np.empty((300, 300), 'f4')\n"
        "from einc_runtime.kernels.base import Invocation\n"
        "kernel = prepare(Invocation('map', {'program': 't0 = mul x0 x0', 'indices': 'i j -> i j'}, [x], [y]))\n"
        "kernel.bind(np.empty(kernel.scratch + 64, np.uint8))()\n"
        "assert (y == 4).all() and 'llvmlite' in compiler.describe_missing()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_session_says_that_kernels_run_in_numpy():
    code = (
        "import sys\n"
        "sys.modules['llvmlite'] = None\n"
        "from einc.compiler import compile_model\n"
        "from einc.options import CompileOptions\n"
        "from einc_runtime.execution.session import Session\n"
        "for size, told in ((8, 0), (256, 1)):\n"
        "    text = f'model m\\ndim n = {size}\\ninput x : f32[n, n]\\ny = exp(x)\\noutput y\\n'\n"
        "    bundle = compile_model(text, 'm', CompileOptions(machine='host', devices=1)).bundle\n"
        "    notes = Session(bundle, 'cpu').notes\n"
        "    assert len(notes) == told and all('llvmlite' in note for note in notes), notes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
