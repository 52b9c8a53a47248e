"""Calls of cuBLAS: they go through C's calling convention to a library that checks arguments and multiplies.

The prototypes are repeated here from cuBLAS's documentation. So an argument that is too narrow, or in the wrong place,
arrives as another value.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, c_double, c_float, c_int, c_longlong, c_size_t, c_void_p

import numpy as np
import pytest

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.errors import make_plan_fault
from einc_runtime.kernels.cuda import cublas
from einc_runtime.kernels.cuda.cublas import CUBLAS_PROTOTYPES, WORKSPACE, Cublas, CublasError, CublasOutOfMemory
from einc_runtime.kernels.triton.gemm import Gemm
from tests.support.emulated_gemm import multiply

STREAM, HANDLE = 0x7FFF_1234_5678_9ABC, 0x7FFF_0000_1111_2220
KINDS = {0: "f32", 1: "f64", 2: "f16", 14: "bf16"}

operation, kind = c_int, c_int
SIGNATURES = {
    "cublasCreate_v2": [POINTER(c_void_p)],
    "cublasDestroy_v2": [c_void_p],
    "cublasGetVersion_v2": [c_void_p, POINTER(c_int)],
    "cublasSetMathMode": [c_void_p, c_int],
    "cublasSetStream_v2": [c_void_p, c_void_p],
    "cublasSetWorkspace_v2": [c_void_p, c_void_p, c_size_t],
    "cublasGemmEx": [
        c_void_p, operation, operation, c_int, c_int, c_int, c_void_p, c_void_p, kind, c_int,
        c_void_p, kind, c_int, c_void_p, c_void_p, kind, c_int, c_int, c_int,
    ],
    "cublasGemmStridedBatchedEx": [
        c_void_p, operation, operation, c_int, c_int, c_int, c_void_p, c_void_p, kind, c_int, c_longlong,
        c_void_p, kind, c_int, c_longlong, c_void_p, c_void_p, kind, c_int, c_longlong, c_int, c_int, c_int,
    ],
}  # fmt: skip


class Library:
    """cuBLAS in Python behind C's calling convention. `failing` is the name of a call that fails, and its status."""

    def __init__(self):
        self.calls, self.failing, self.state = [], {}, {}
        self.modes = {}
        for name, arguments in SIGNATURES.items():
            implementation = CFUNCTYPE(c_int, *arguments)(self._answer(name))
            address = ctypes.cast(implementation, c_void_p).value
            function = CFUNCTYPE(c_int)(address)  # as a symbol of a library: what it takes is not known
            function.kept = implementation
            setattr(self, name, function)

    def _answer(self, name):
        def answer(*arguments):
            self.calls.append((name, arguments))
            if name in self.failing:
                return self.failing[name]
            method = getattr(self, "_" + name.removesuffix("_v2"), None)
            if method is not None:
                method(*arguments)
            return 0

        return answer

    def _cublasCreate(self, where):
        where[0] = HANDLE + len(self.calls)

    def _cublasGetVersion(self, handle, where):
        where[0] = 120804

    def _cublasSetMathMode(self, handle, mode):
        self.modes[handle] = mode

    def _cublasSetStream(self, handle, stream):
        self.state[handle] = stream, None  # the workspace is cuBLAS's own again

    def _cublasSetWorkspace(self, handle, memory, size):
        self.state[handle] = self.state[handle][0], (memory, size)

    def _cublasGemmEx(self, handle, ta, tb, m, n, k, scale, a, at, lda, b, bt, ldb, zero, c, ct, ldc, how, algorithm):
        self._cublasGemmStridedBatchedEx(
            handle, ta, tb, m, n, k, scale, a, at, lda, 0, b, bt, ldb, 0, zero, c, ct, ldc, 0, 1, how, algorithm
        )

    def _cublasGemmStridedBatchedEx(
        self, handle, ta, tb, m, n, k, scale, a, at, lda, sa, b, bt, ldb, sb, zero, c, ct, ldc, sc, count, how, way
    ):
        assert at == bt
        number = c_double if how == 70 else c_float
        scale = number.from_address(scale).value
        assert number.from_address(zero).value == 0
        assert how == (70 if KINDS[at] == "f64" else 68)
        assert way == -1
        matrices = m, n, k, a, lda, sa, b, ldb, sb, c, ldc, sc, count
        multiply(Gemm(bool(ta), bool(tb), *matrices, KINDS[at], KINDS[ct], scale))


def own():
    library, used = Library(), []
    return Cublas(used.append, library), library, used


@pytest.mark.parametrize("scale", [1.0, -0.75])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("dtype", "result"), [("f4", "f4"), ("f8", "f8"), ("f2", "f2"), ("f2", "f4")])
def test_the_library_gets_the_arguments_of_a_product(batch, dtype, result, scale):
    rng = np.random.default_rng(batch)
    m, n, k = 5, 7, 3
    a, b = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((batch, k, m), (batch, n, k)))
    c = np.zeros((batch, n, m), result)
    name = {"f2": "f16", "f4": "f32", "f8": "f64"}
    where = tuple(x.ctypes.data for x in (a, b, c))
    matrices = m, n, k, 1, m, k * m, 2, k, n * k, 3, m, n * m, batch
    product = Gemm(False, False, *matrices, name[dtype], name[result], scale)
    products, library, _ = own()
    workspace = 0x7F00_0000_0100
    launch = products.launch(product, where, workspace, 0)
    before = len(library.calls)
    launch(STREAM)
    assert np.array_equal(c, (scale * (b.astype("f8") @ a.astype("f8"))).astype(result))
    called = [call for call, _ in library.calls[before:]]
    gemm = "cublasGemmEx" if batch == 1 else "cublasGemmStridedBatchedEx"
    assert called == ["cublasSetStream_v2", "cublasSetWorkspace_v2", gemm]
    assert list(library.state.values()) == [(STREAM, (workspace, WORKSPACE))]


def test_large_strides_and_negative_numbers_are_not_cut():
    products, library, _ = own()
    library.failing["cublasGemmStridedBatchedEx"] = 15
    stride = 1 << 40
    product = Gemm(True, False, 1, 1, 1, 1, 2**31 - 1, stride, 2, 1, stride + 1, 3, 1, stride + 2, 9, "f16", "f32")
    with pytest.raises(CublasError, match=r"cublasGemmStridedBatchedEx: status 15 \(not supported\)"):
        products.launch(product, (1 << 47, 1 << 46, 1 << 45), 1 << 44, 0)(STREAM)
    _, arguments = library.calls[-1]
    assert (arguments[7], arguments[11], arguments[16]) == (1 << 47, 1 << 46, 1 << 45)
    assert (arguments[9], arguments[10], arguments[14], arguments[19]) == (2**31 - 1, stride, stride + 1, stride + 2)
    assert arguments[-1] == -1


def test_a_device_has_one_handle_of_full_precision():
    products, library, used = own()
    for device in (0, 1, 0):
        assert products.version(device) == "12.8.4"
    created = [call for call, _ in library.calls if call == "cublasCreate_v2"]
    assert len(created) == 2
    assert set(library.modes.values()) == {16}
    products.close()
    destroyed = [arguments[0] for call, arguments in library.calls if call == "cublasDestroy_v2"]
    assert sorted(destroyed) == sorted(library.modes)
    assert sorted(used) == [0, 1]  # each on its own device
    products.close()
    assert len([call for call, _ in library.calls if call == "cublasDestroy_v2"]) == 2


def test_all_handles_are_destroyed_even_if_one_fails():
    products, library, _ = own()
    products.version(0)
    products.version(1)
    library.failing["cublasDestroy_v2"] = 14
    with pytest.raises(CublasError, match="internal error"):
        products.close()
    assert [call for call, _ in library.calls].count("cublasDestroy_v2") == 2


def test_a_lack_of_memory_is_an_error_of_its_own():
    products, library, _ = own()
    library.failing["cublasCreate_v2"] = 3
    with pytest.raises(CublasOutOfMemory) as caught:
        products.version(0)
    assert isinstance(make_plan_fault(caught.value, "a model"), MissingFault)
    assert isinstance(make_plan_fault(CublasError("no"), "a model"), KernelFault)


def test_prototypes_are_those_of_the_documentation():
    assert CUBLAS_PROTOTYPES.keys() == SIGNATURES.keys()
    for name, arguments in CUBLAS_PROTOTYPES.items():
        assert [ctypes.sizeof(argument) for argument in arguments] == [ctypes.sizeof(x) for x in SIGNATURES[name]]


def test_the_error_without_cublas_says_what_to_install(monkeypatch):
    def missing(name, *arguments, **named):
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(cublas.ctypes, "CDLL", missing)
    with pytest.raises(MissingFault, match="need cuBLAS") as caught:
        Cublas(lambda device: None)
    assert caught.value.exit_code == 69
    assert "nvidia-cublas" in caught.value.hint


def test_the_library_of_nvidias_packages_is_found(monkeypatch, tmp_path):
    there = tmp_path / "nvidia" / "cublas" / "lib" / "libcublas.so.12"
    there.parent.mkdir(parents=True)
    there.touch()
    looked = []

    def load(name, *arguments, **named):
        looked.append(name)
        if name != str(there):
            raise OSError(name)
        return Library()

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(cublas.ctypes, "CDLL", load)
    assert Cublas(lambda device: None).version(0) == "12.8.4"
    assert looked[-1] == str(there)
