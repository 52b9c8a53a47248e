"""Which library multiplies: decided by the plan and the processor's instructions."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import libraries, onednn
from einc_runtime.kernels.numpy.libraries import choose_library
from einc_runtime.kernels.numpy.products import DenseProduct
from einc_runtime.kernels.registry import prepare


@pytest.fixture
def machine(monkeypatch):
    """A machine with oneDNN, whose instructions a test chooses."""
    found = type("Machine", (), {"instructions": frozenset(), "has_onednn": True})()
    monkeypatch.setattr(libraries, "find_instructions", lambda: found.instructions)
    monkeypatch.setattr(onednn, "is_available", lambda: found.has_onednn)
    return found


def product(rows, columns, dtype="f4"):
    return DenseProduct(np.ones((rows, 96), dtype), np.ones((96, columns), dtype), np.ones((rows, columns), dtype))


def test_onednn_multiplies_f32_but_for_small_products_and_products_with_a_vector(machine):
    assert choose_library(product(8, 200), 1) == "onednn"
    assert choose_library(product(200, 1), 1) == "onednn"  # its rows are many
    assert choose_library(product(1, 200), 1) == "openblas"
    assert choose_library(product(200, 1), 0) == "openblas"
    assert choose_library(product(200, 1), None) == "openblas"
    assert choose_library(product(8, 20), 1) == "openblas"
    assert choose_library(product(200, 300, "f8"), 1) == "openblas"
    machine.has_onednn = False
    assert choose_library(product(200, 300), 1) == "openblas"


@pytest.mark.parametrize(
    ("instructions", "multiplied"),
    [
        ({"avx512f", "avx512vl"}, set()),
        ({"avx512f", "avx512fp16"}, {"f16"}),
        ({"avx512bf16"}, {"bf16"}),
        ({"amx-bf16", "amx-fp16"}, {"bf16", "f16"}),
    ],
)
def test_narrow_types_are_multiplied_where_that_is_no_slower(instructions, multiplied, machine):
    machine.instructions = frozenset(instructions)
    assert {kind for kind in ("f32", "f16", "bf16") if libraries.is_multiplied(kind)} == multiplied
    assert {kind for kind in ("f64", "f32", "f16", "bf16") if libraries.packs_few_rows(kind)} == {"f32", *multiplied}
    machine.has_onednn = False
    assert not any(map(libraries.is_multiplied, ("f16", "bf16")))
    assert not libraries.packs_few_rows("f32")


def test_users_are_told_what_multiplies_once_it_matters(machine, monkeypatch):
    monkeypatch.setattr(onednn, "was_needed", lambda: False)
    assert libraries.describe() is None
    monkeypatch.setattr(onednn, "was_needed", lambda: True)
    machine.instructions = frozenset({"avx512bf16"})
    products = libraries.describe()["products"]
    assert {kind: product["library"] for kind, product in products.items()} == {
        "f32": "onednn", "bf16": "onednn", "f16": "openblas",
    }  # fmt: skip


needs_narrow = pytest.mark.skipif(not libraries.is_multiplied("bf16"), reason="bf16 is not multiplied as it is here")


def contract(equation, *arrays, packed=True):
    """The kernel of a product whose inputs are constant, after it ran."""
    *inputs, output = arrays
    inputs = [array.view() for array in inputs]
    for array in inputs:
        array.flags.writeable = False
    kernel = prepare(Invocation("contract", {"equation": equation}, inputs, [output]))
    for pack in kernel.prepacked if packed else ():
        pack.make()
    kernel.bind(np.full(kernel.scratch, 0xFF, np.uint8))()
    return kernel


@needs_narrow
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("t m, f m -> t f", ((37, 211), (83, 211), (37, 83))),
        ("t m, m f -> t f", ((5, 297), (297, 13), (5, 13))),
        ("t m, h d m -> h t d", ((17, 300), (3, 41, 300), (3, 17, 41))),
        ("h t d, f h d -> t f", ((3, 19, 29), (83, 3, 29), (19, 83))),
        ("b i k, b j k -> b i j", ((5, 7, 53), (5, 19, 53), (5, 7, 19))),
    ],
)
def test_bf16_is_summed_in_f32_and_rounded_once(equation, shapes, packed):
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in shapes]
    short = equation.replace(" ", "")
    exact = np.einsum(short, *(array.astype("f8") for array in arrays[:2]))
    magnitude = np.einsum(short, *(np.abs(array.astype("f8")) for array in arrays[:2]))
    contract(equation, *arrays, packed=packed)
    error = np.abs(arrays[2].astype("f8") - exact)
    assert (error <= np.abs(exact) * 2**-8 + magnitude * 1e-6).all()  # half a unit in the last place, and sums in f32


def test_few_rows_are_left_to_the_library_that_packs(monkeypatch):
    if not onednn.is_available() or not compiler.is_available():
        pytest.skip("oneDNN or llvmlite is missing")
    found = []
    for packs, kind in ((True, ml_dtypes.bfloat16), (False, ml_dtypes.bfloat16), (True, np.float32)):
        monkeypatch.setattr(libraries, "packs_few_rows", lambda kind, packs=packs: packs)
        monkeypatch.setattr(libraries, "choose_library", lambda product, side: "onednn")
        arrays = [np.ones(shape, kind) for shape in ((9, 256), (400, 256), (9, 400))]
        for rows in (9, 8):
            few = [arrays[0][:rows], arrays[1], arrays[2][:rows]]
            found.append(len(contract("t m, f m -> t f", *few).prepacked))
            assert (few[2] == 256).all()
    assert found[1:] == [0] * 5
    if libraries.is_multiplied("bf16"):
        assert found[0] == 1


@needs_narrow
def test_bf16_keeps_infinities_and_not_a_numbers():
    a, b = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((6, 120), (50, 120)))
    a[0], b[:] = 1, 2
    a[1, 3], a[2, 5], a[3, 0], b[7, 0] = np.inf, np.nan, -np.inf, 0
    c = np.empty((6, 50), ml_dtypes.bfloat16)
    assert contract("t m, f m -> t f", a, b, c).prepacked[0].size < 4 * b.size  # it is not widened
    with np.errstate(invalid="ignore"):
        exact = a.astype("f4") @ b.astype("f4").T
    assert np.array_equal(c.astype("f4"), exact, equal_nan=True)


def test_a_library_that_cannot_be_loaded_is_left_out_and_named(monkeypatch, tmp_path):
    (tmp_path / "libdnnl.so.3").write_bytes(b"no library")
    monkeypatch.setattr(onednn, "find_files", lambda: [tmp_path / onednn.FILE])
    monkeypatch.setattr(onednn, "_open", functools.cache(onednn._open.__wrapped__))
    assert onednn.describe_problem() is None  # nobody has asked for it
    assert choose_library(product(200, 300), 1) == "openblas"
    assert "cannot be loaded" in onednn.describe_problem()
    assert onednn.limit_threads(1) == 1


def test_threads_of_the_caller_are_left_as_they_were():
    if not onednn.is_available():
        pytest.skip("oneDNN is not installed")
    before = onednn.limit_threads(3)
    try:
        with onednn.one_thread():
            assert onednn.limit_threads(1) == 1
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape).astype("f4") for shape in ((40, 50), (60, 50), (40, 60))]
        contract("t m, f m -> t f", *arrays)
        assert onednn.limit_threads(3) == 3
    finally:
        onednn.limit_threads(before)
