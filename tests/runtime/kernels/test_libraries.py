"""Which library multiplies: decided by times of this processor, which are measured once and not trusted when read."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import libraries, library_times, onednn
from einc_runtime.kernels.numpy.blas import DenseProduct
from einc_runtime.kernels.numpy.libraries import LibraryChoice, choose_library
from einc_runtime.kernels.registry import prepare

CACHED = (libraries._times, libraries._installed)
FEW, MANY = "f32, few rows", "f32, many rows"
OF_CONSTANT, OF_VARIABLE = "constant right operand", "variable right operand"
TIMES = {
    f"{FEW}, {OF_CONSTANT}": {"openblas": 30.0, "mkl": 20.0, "onednn": 10.0},
    f"{FEW}, {OF_VARIABLE}": {"openblas": 30.0, "mkl": 20.0, "onednn": 25.0},
    f"{MANY}, {OF_CONSTANT}": {"openblas": 100.0, "mkl": 101.0, "onednn": 104.0},
    f"{MANY}, {OF_VARIABLE}": {"openblas": 100.0, "mkl": 96.0, "onednn": 106.0},
}
BF16 = {"bf16, many rows, constant right operand": {"onednn": 60.0}}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with all libraries, whose times a test chooses, and an empty cache folder. Measurements are counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = type("Machine", (), {"measured": 0, "times": TIMES, "installed": ("openblas", "mkl", "onednn")})()

    def measure():
        found.measured += 1
        return found.times

    for function in CACHED:
        function.cache_clear()
    monkeypatch.setattr(libraries, "_measure", measure)
    monkeypatch.setattr(libraries, "_times_of_first_rank", {})
    monkeypatch.setattr(libraries, "_installed", lambda: found.installed)
    monkeypatch.setattr(onednn, "is_available", lambda: True)
    yield found
    monkeypatch.undo()
    for function in CACHED:
        function.cache_clear()


def product(rows, columns, dtype="f4"):
    return DenseProduct(np.ones((rows, 96), dtype), np.ones((96, columns), dtype), np.ones((rows, columns), dtype))


def test_the_fastest_library_is_taken_and_of_nearly_equal_ones_the_preferred_one(machine):
    assert choose_library(product(8, 200), 1) == LibraryChoice("onednn", "mkl")
    assert choose_library(product(200, 8), 0) == LibraryChoice("onednn", "mkl")  # few rows are columns there
    assert choose_library(product(200, 8), None).plain == "mkl"
    assert choose_library(product(200, 300), 1) == LibraryChoice("onednn", "openblas")  # 104 is as fast as 100
    assert choose_library(product(200, 300, "f8"), 1) == LibraryChoice("openblas", "openblas")
    assert choose_library(product(1, 300), 1).packed != "onednn"
    assert choose_library(product(200, 300, "i8"), 1) == LibraryChoice("openblas", "openblas")
    assert machine.measured == 1


def test_another_process_decides_alike(machine):
    own = libraries.decide()
    assert own
    other = {name: dict.fromkeys(times, 5.0) for name, times in own.items()}
    libraries.adopt_times({**other, "f32, no rows": {"openblas": 1.0}})  # of another version
    assert libraries.decide() == own
    libraries.adopt_times(other)
    assert libraries.decide() == other
    libraries._times.cache_clear()


def test_numpy_alone_is_not_measured(machine):
    machine.installed = ("openblas",)
    assert choose_library(product(200, 300), 1) == LibraryChoice("openblas", "openblas")
    assert machine.measured == 0
    assert libraries.describe() is None


def test_narrow_types_are_multiplied_where_that_is_faster(machine):
    assert not libraries.is_multiplied("bf16")
    assert not libraries.is_multiplied("f32")
    machine.times = TIMES | BF16
    forget()
    assert libraries.is_multiplied("bf16")
    assert not libraries.is_multiplied("f16")
    machine.times = TIMES | {name: {"onednn": 300.0} for name in BF16}
    forget()
    assert not libraries.is_multiplied("bf16")


def remembered():
    return list((Path(os.environ["XDG_CACHE_HOME"]) / "einc" / "libraries").iterdir())


def forget():
    libraries._times.cache_clear()
    for path in remembered():
        path.unlink()


def test_times_are_remembered_until_the_libraries_or_the_processor_change(machine, monkeypatch):
    def again():
        libraries._times.cache_clear()
        return libraries._times()

    assert again() == TIMES
    assert again() == TIMES
    assert machine.measured == 1
    monkeypatch.setattr(library_times, "read_cpuinfo", lambda: {"model name": "another", "flags": "fpu"})
    again()
    assert machine.measured == 2
    monkeypatch.setenv("OPENBLAS_CORETYPE", "another")
    again(), again()
    assert machine.measured == 3
    assert {path.stat().st_mode & 0o777 for path in remembered()} == {0o600}


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b"[" * 5000,
        lambda own: own | {"version": 2},
        lambda own: own | {"more": 1},
        lambda own: own | {"us": {}},
        lambda own: own | {"us": []},
        lambda own: own | {"us": own["us"] | {f"{FEW}, {OF_CONSTANT}": {}}},
        lambda own: own | {"us": own["us"] | {f"{FEW}, {OF_CONSTANT}": {"other": 1.0}}},
        lambda own: own | {"us": own["us"] | {f"{FEW}, {OF_CONSTANT}": {"mkl": -1.0}}},
        lambda own: own | {"us": own["us"] | {f"{FEW}, {OF_CONSTANT}": {"mkl": "fast"}}},
        lambda own: own | {"us": own["us"] | {f"{FEW}, {OF_CONSTANT}": {"mkl": True}}},
        lambda own: own | {"us": own["us"] | {"i8": {"mkl": 1.0}}},
        lambda own: own | {"processor": "x" * (1 << 17)},
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_it_was_written_is_measured_again(machine, damage):
    libraries._times()
    (path,) = remembered()
    changed = damage if isinstance(damage, bytes) else json.dumps(damage(json.loads(path.read_bytes()))).encode()
    path.write_bytes(changed)
    libraries._times.cache_clear()
    assert libraries._times() == TIMES
    assert machine.measured == 2


def test_files_that_others_can_write_are_not_read_and_no_folder_is_needed(machine, monkeypatch):
    libraries._times()
    (path,) = remembered()
    path.chmod(0o666)
    libraries._times.cache_clear()
    assert libraries._times() == TIMES
    assert machine.measured == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    libraries._times.cache_clear()
    assert libraries._times() == TIMES
    assert machine.measured == 3


def test_what_is_measured_here_is_complete():
    if len(libraries._installed()) == 1:
        pytest.skip("there is only numpy's OpenBLAS")
    times = libraries._measure()
    assert libraries._is_complete(times)
    constant = times[f"{MANY}, {OF_CONSTANT}"]
    assert set(constant) == set(libraries._installed())
    assert all(1 < us < 1e6 for us in constant.values())


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
        monkeypatch.setattr(libraries, "choose_library", lambda product, side: LibraryChoice("onednn", "onednn"))
        arrays = [np.ones(shape, kind) for shape in ((9, 256), (400, 256), (9, 400))]
        for rows in (9, 8):
            few = [arrays[0][:rows], arrays[1], arrays[2][:rows]]
            found.append(len(contract("t m, f m -> t f", *few).prepacked))
            assert (few[2] == 256).all()
    if compiler.has_wide_registers():  # with fewer registers, a library packs what has more rows than they hold
        assert found[2:] == [0, 0, 0, 0]
        assert found[1] == 0
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
    monkeypatch.setattr(onednn, "find_library_files", lambda pattern: [tmp_path / pattern])
    monkeypatch.setattr(onednn, "_open", functools.cache(onednn._open.__wrapped__))
    monkeypatch.setattr(libraries, "_installed", lambda: ("openblas", "onednn"))
    assert onednn.describe_problem() is None  # nobody has asked for it
    times = libraries._measure()
    assert libraries._is_complete(times)
    assert {library for own in times.values() for library in own} == {"openblas"}
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
