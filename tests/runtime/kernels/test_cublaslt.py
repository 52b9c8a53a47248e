"""Calls of cuBLASLt: they go through C's calling convention to a library with descriptors that multiplies.

The prototypes and the numbers of attributes are repeated here from cublasLt.h. Where cuBLASLt itself can be opened,
which needs no GPU, the attributes of its own descriptors are read back.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import ml_dtypes
import numpy as np
import pytest

from einc_runtime.errors import MissingFault
from einc_runtime.kernels.cuda import cublaslt
from einc_runtime.kernels.cuda.cublas import WORKSPACE, CublasError, CublasOutOfMemory, open_library
from einc_runtime.kernels.cuda.cublaslt import CUBLASLT_PROTOTYPES, Algorithm, CublasLt
from einc_runtime.kernels.triton.gemm import Gemm
from tests.support.emulated_gemm import multiply

STREAM, MEMORY = 0x7FFF_1234_5678_9ABC, 0x7F00_0000_0100
KINDS = {0: "f32", 2: "f16", 14: "bf16", 28: "f8e4m3"}

descriptor, setting = c_void_p, [c_void_p, c_int, c_void_p, c_size_t]


class Proposal(Structure):
    _fields_ = (("algo", c_uint64 * 8), ("size", c_size_t), ("state", c_int), ("waves", c_float), ("rest", c_int * 4))


SIGNATURES = {
    "cublasLtCreate": [POINTER(c_void_p)],
    "cublasLtDestroy": [c_void_p],
    "cublasLtMatmulDescCreate": [POINTER(c_void_p), c_int, c_int],
    "cublasLtMatmulDescDestroy": [c_void_p],
    "cublasLtMatmulDescSetAttribute": setting,
    "cublasLtMatrixLayoutCreate": [POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64],
    "cublasLtMatrixLayoutDestroy": [c_void_p],
    "cublasLtMatrixLayoutSetAttribute": setting,
    "cublasLtMatmulPreferenceCreate": [POINTER(c_void_p)],
    "cublasLtMatmulPreferenceDestroy": [c_void_p],
    "cublasLtMatmulPreferenceSetAttribute": setting,
    "cublasLtMatmulAlgoGetHeuristic": [*[c_void_p] * 7, c_int, POINTER(Proposal), POINTER(c_int)],
    "cublasLtMatmulAlgoCheck": [*[c_void_p] * 6, POINTER(c_uint64 * 8), POINTER(Proposal)],
    "cublasLtMatmul": [
        c_void_p, descriptor, c_void_p, c_void_p, descriptor, c_void_p, descriptor, c_void_p, c_void_p, descriptor,
        c_void_p, descriptor, POINTER(c_uint64 * 8), c_void_p, c_size_t, c_void_p,
    ],
}  # fmt: skip
ATTRIBUTES = {
    "cublasLtMatmulDesc": {
        3: c_int,
        4: c_int,
        7: c_uint32,
        8: c_void_p,
        17: c_void_p,
        18: c_void_p,
        31: c_int,
        32: c_int,
    },
    "cublasLtMatrixLayout": {5: c_int, 6: c_int64},
    "cublasLtMatmulPreference": {1: c_uint64, 3: c_uint32, 5: c_uint32, 6: c_uint32, 7: c_uint32, 8: c_uint32},
}


class Library:
    """cuBLASLt in Python behind C's calling convention. `statuses` are those of calls that fail; `proposals` is their
    number."""

    def __init__(self):
        self.calls, self.statuses, self.held, self.next = [], {}, {}, 1000
        self.proposals, self.size, self.asked = 1, 4096, []
        for name, arguments in SIGNATURES.items():
            implementation = CFUNCTYPE(c_int, *arguments)(self._answer(name))
            function = CFUNCTYPE(c_int)(ctypes.cast(implementation, c_void_p).value)
            function.kept = implementation
            setattr(self, name, function)
        version = CFUNCTYPE(c_size_t)(lambda: 130_002)
        self.cublasLtGetVersion = CFUNCTYPE(c_size_t)(ctypes.cast(version, c_void_p).value)
        self.cublasLtGetVersion.kept = version

    def _answer(self, name):
        def answer(*arguments):
            self.calls.append(name)
            if name in self.statuses:
                return self.statuses[name]
            if name.endswith("Create"):
                self.next += 8
                self.held[self.next] = [name.removesuffix("Create"), arguments[1:], {}]
                arguments[0][0] = self.next
            elif name.endswith("Destroy"):
                del self.held[arguments[0]]
            elif name.endswith("SetAttribute"):
                own, attribute, where, size = arguments
                kind = ATTRIBUTES[name.removesuffix("SetAttribute")][attribute]
                assert size == ctypes.sizeof(kind)
                self.held[own][2][attribute] = kind.from_address(where).value
            else:
                return getattr(self, "_" + name)(*arguments)
            return 0

        return answer

    def _product(self, what, a, b, c, d):
        (compute, scale), how = self.held[what][1:]
        assert (compute, scale) == (68, 0)
        (kind, *_), (kind_b, *_), (result, *_) = (self.held[x][1] for x in (a, b, d))
        assert kind == kind_b
        assert self.held[c][1:] == self.held[d][1:]
        rows, columns, ldc = self.held[d][1][1:]
        shapes = [self.held[x][1][1:3] for x in (a, b)]
        turned = how[3], how[4]
        (m, k), (k_b, n) = (shape[::-1] if turn else shape for shape, turn in zip(shapes, turned, strict=True))
        assert (m, n, k) == (rows, columns, k_b)
        batch, strides = self.held[a][2][5], [self.held[x][2][6] for x in (a, b, d)]
        assert all(self.held[x][2][5] == batch for x in (b, c, d))
        function, bias = how[7] & ~4, 0
        if how[7] & 4 and how[7] != 4:
            bias = how[8]
        elif how[7] == 4:
            function, bias = 1, how[8]
        return Gemm(
            bool(turned[0]), bool(turned[1]), m, n, k, 0, self.held[a][1][3], strides[0], 0, self.held[b][1][3],
            strides[1], 0, ldc, strides[2], batch, KINDS[kind], KINDS[result], 1.0, 0, bias,
            {1: "", 2: "relu", 32: "gelu_tanh"}[function], *self._scales(how),
        )  # fmt: skip

    def _scales(self, how):
        """The vectors of rows and columns (OUTER_VEC_32F)."""
        assert how.get(31, 0) == how.get(32, 0) == (3 if 17 in how else 0)
        return how.get(17, 0), how.get(18, 0)

    def _cublasLtMatmulAlgoGetHeuristic(self, handle, what, a, b, c, d, preference, most, found, count):
        assert self.held[handle][0] == "cublasLt"
        self.asked.append((self._product(what, a, b, c, d), self.held[preference][2]))
        for n in range(min(most, self.proposals)):
            found[n] = Proposal((c_uint64 * 8)(*range(n, n + 8)), self.size if n != 1 else WORKSPACE + 1, 0, 1.0)
        count[0] = min(most, self.proposals)
        return 0

    def _cublasLtMatmulAlgoCheck(self, handle, what, a, b, c, d, algo, found):
        self.checked = self._product(what, a, b, c, d)
        found[0] = Proposal((c_uint64 * 8)(), self.size, 0, 1.0)
        return 0 if algo[0][0] < 100 else 15

    def _cublasLtMatmul(self, handle, what, scale, a, a_of, b, b_of, beta, c, c_of, d, d_of, algo, *rest):
        self.used = algo[0][0]
        assert list(algo[0]) == list(range(self.used, self.used + 8))
        assert tuple(rest) == (MEMORY, WORKSPACE, STREAM)
        product = self._product(what, a_of, b_of, c_of, d_of)
        beta = c_float.from_address(beta).value
        assert beta in (0, 1)
        own = {"a": a, "b": b, "c": d, "scale": c_float.from_address(scale).value, "addend": c if beta else 0}
        multiply(Gemm(**{name: getattr(product, name) for name in Gemm.__slots__} | own))
        return 0


def own():
    library, used = Library(), []
    return CublasLt(used.append, library), library, used


def operands(batch, m, n, k, dtype):
    rng = np.random.default_rng(batch)
    shapes = (batch, k, m), (batch, n, k), (batch, n, m), (batch, n, m), (m,)
    return [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh"])
@pytest.mark.parametrize("added", ["addend", "bias", ""])
@pytest.mark.parametrize(("batch", "dtype", "scale"), [(1, "f2", 1.0), (3, "f4", -0.75)])
def test_the_library_gets_the_arguments_of_a_product(batch, added, activation, dtype, scale):
    m, n, k = 5, 7, 3
    arrays = operands(batch, m, n, k, dtype)
    a, b, c, residual, bias = arrays
    at = [x.ctypes.data for x in arrays]
    kind = {"f2": "f16", "f4": "f32"}[dtype]
    product = Gemm(
        False, False, m, n, k, at[0], m, k * m, at[1], k, n * k, at[2], m, n * m, batch, kind, kind, scale,
        at[3] if added == "addend" else 0, at[4] if added == "bias" else 0, activation,
    )  # fmt: skip
    products, library, used = own()
    assert products.fits(product, 1)
    assert {held[0] for held in library.held.values()} == {"cublasLt"}  # what was needed to ask is given back
    launch = products.launch(product, MEMORY, 1)
    before = len(library.calls)
    for _ in range(2):
        launch(STREAM)
    assert library.calls[before:] == ["cublasLtMatmul"] * 2
    value = scale * (b.astype("f8") @ a.astype("f8"))
    value = value + (residual if added == "addend" else bias if added == "bias" else 0)
    if activation == "gelu_tanh":
        value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    np.testing.assert_array_equal(c, (np.maximum(value, 0) if activation == "relu" else value).astype(dtype))
    products.close()
    assert not library.held
    assert used == [1]


def test_floats_of_8_bits_have_scales_of_rows_and_columns():
    m, n, k = 16, 5, 48
    rng = np.random.default_rng(2)
    a, b = (aligned(rng.normal(0, 9, shape).astype(ml_dtypes.float8_e4m3fn)) for shape in ((m, k), (n, k)))
    of_m, of_n, c = rng.random(m, "f4"), rng.random(n, "f4"), aligned(np.zeros((n, m), "f4"))
    at = [x.ctypes.data for x in (a, b, c, of_m, of_n)]
    product = Gemm(True, False, m, n, k, at[0], k, 0, at[1], k, 0, at[2], m, 0, 1, "f8e4m3", "f32", 0.5,
                   scale_m=at[3], scale_n=at[4])  # fmt: skip
    products, _, _ = own()
    assert products.fits(product, 0)
    products.launch(product, MEMORY, 0)(STREAM)
    expected = 0.5 * (b.astype("f8") @ a.astype("f8").T) * of_m * of_n[:, None]
    np.testing.assert_allclose(c, expected, rtol=1e-6)
    products.close()


def aligned(array):
    """A copy at a multiple of 16 bytes."""
    raw = np.empty(array.nbytes + 16, np.uint8)
    start = -raw.ctypes.data % 16
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def product(**changed):
    values = {
        "transpose_a": True, "transpose_b": False, "m": 4096, "n": 8192, "k": 14336, "a": 1 << 40, "lda": 14336,
        "stride_a": 0, "b": 2 << 40, "ldb": 14336, "stride_b": 0, "c": 3 << 40, "ldc": 4096, "stride_c": 0, "batch": 1,
        "kind": "f16", "result": "f16", "scale": 1.0, "addend": 4 << 40,
    }  # fmt: skip
    return Gemm(**(values | changed))


def test_an_algorithm_is_requested_once_with_workspace_and_alignments():
    products, library, _ = own()
    assert products.fits(product(), 0)
    assert products.fits(product(a=5 << 40, c=6 << 40), 0)
    assert len(library.asked) == 1
    _, wanted = library.asked[0]
    assert wanted == {1: WORKSPACE, 3: 2, 5: 256, 6: 256, 7: 256, 8: 256}
    assert products.fits(product(a=(5 << 40) + 16, addend=(4 << 40) + 64), 0)
    assert library.asked[1][1] == {1: WORKSPACE, 3: 2, 5: 16, 6: 256, 7: 64, 8: 256}
    assert products.fits(product(addend=0, activation="relu"), 0)
    assert library.asked[2][0].activation == "relu"
    assert products.fits(product(addend=0, activation="relu"), 1)  # another device
    assert len(library.asked) == 4


def test_of_several_proposals_those_that_fit_are_given_in_their_order():
    products, library, _ = own()
    library.proposals = 3
    arrays = operands(1, 5, 7, 3, "f4")
    at = [x.ctypes.data for x in arrays]
    small = product(transpose_a=False, m=5, n=7, k=3, a=at[0], lda=5, b=at[1], ldb=3, c=at[2], ldc=5, kind="f32",
                    result="f32", addend=0)  # fmt: skip
    found = products.proposals(small, 0, 8)
    assert [one.algorithm[0] for one in found] == [0, 2]  # the second takes too much workspace
    for algorithm in found:
        products.launch(small, MEMORY, 0, algorithm)(STREAM)
        assert library.used == algorithm.algorithm[0]
        np.testing.assert_array_equal(arrays[2], arrays[1].astype("f8") @ arrays[0].astype("f8"))
        arrays[2][...] = 0
    products.close()
    assert not library.held


def test_algorithms_are_restored_from_their_records_if_the_library_knows_them():
    products, library, _ = own()
    assert products.version == "cublasLt 130002"
    library.proposals = 4
    known = products.proposals(product(), 0, 8)[-1]
    assert len(known.record) == 64
    restored = products.restore(known.record, product(), 0)
    assert (restored.record, restored.workspace) == (known.record, library.size)
    assert library.checked.k == 14336
    assert products.restore(bytes([200]) * 64, product(), 0) is None
    library.size = WORKSPACE + 1
    assert products.restore(known.record, product(), 0) is None
    products.close()
    assert not library.held


def test_products_without_an_algorithm_do_not_fit():
    for name, value in (
        ("proposals", 0),
        ("size", WORKSPACE + 1),
        ("statuses", {"cublasLtMatmulAlgoGetHeuristic": 15}),
        ("statuses", {"cublasLtCreate": 1}),
        ("statuses", {"cublasLtMatrixLayoutCreate": 7}),
    ):
        products, library, _ = own()
        setattr(library, name, value)
        assert not products.fits(product(), 0)
        assert not products.fits(product(), 0)
        assert {held[0] for held in library.held.values()} <= {"cublasLt"}
        with pytest.raises(CublasError):
            products.launch(product(), MEMORY, 0)
        products.close()
        assert not library.held


def test_errors_of_launches_are_raised():
    products, library, _ = own()
    launch = products.launch(product(), MEMORY, 0)
    library.statuses["cublasLtMatmul"] = 15
    with pytest.raises(CublasError, match=r"cublasLtMatmul: status 15 \(not supported\)"):
        launch(STREAM)
    library.statuses["cublasLtMatmul"] = 3
    with pytest.raises(CublasOutOfMemory):
        launch(STREAM)


def test_all_descriptors_are_destroyed_even_after_a_failure():
    products, library, used = own()
    for device in (0, 1):
        products.launch(product(), MEMORY, device)
    library.statuses["cublasLtMatmulDescDestroy"] = 14
    with pytest.raises(CublasError, match="internal error"):
        products.close()
    assert {held[0] for held in library.held.values()} == {"cublasLtMatmulDesc"}
    assert sorted(used) == [0, 1]


def test_prototypes_are_those_of_the_header():
    assert CUBLASLT_PROTOTYPES.keys() == SIGNATURES.keys()
    for name, arguments in CUBLASLT_PROTOTYPES.items():
        assert [ctypes.sizeof(argument) for argument in arguments] == [ctypes.sizeof(x) for x in SIGNATURES[name]]
    assert ctypes.sizeof(Algorithm) == ctypes.sizeof(Proposal) == 96


def test_without_the_library_there_are_no_epilogues(monkeypatch):
    def missing(*_):
        raise MissingFault("none")

    monkeypatch.setattr(cublaslt, "open_library", missing)
    assert cublaslt.open_if_available(lambda device: None) is None


def test_cublaslt_reads_back_the_descriptors():
    try:
        library = open_library("cublasLt", ("libcublasLt.so.13", "libcublasLt.so.12"))
    except MissingFault:
        pytest.skip("cuBLASLt is not installed here")
    products = CublasLt(lambda device: None, library)
    made = []
    what, matrices = products._described(
        product(batch=3, stride_a=5, stride_c=7, bias=5 << 40, activation="relu"), made
    )

    def value(kind, descriptor, attribute, type_):
        found, size = type_(), c_size_t()
        getter = getattr(library, f"{kind}GetAttribute")
        getter.argtypes = (c_void_p, c_int, c_void_p, c_size_t, c_void_p)
        where = ctypes.addressof(found), ctypes.sizeof(found), ctypes.addressof(size)
        assert getter(descriptor, attribute, *where) == 0
        return found.value

    own = [("compute", 0, c_int), ("scale", 1, c_int), ("a", 3, c_int), ("b", 4, c_int), ("how", 7, c_uint32)]
    found = [value("cublasLtMatmulDesc", what, attribute, kind) for _, attribute, kind in own]
    assert found == [68, 0, 1, 0, 6]
    assert value("cublasLtMatmulDesc", what, 8, c_void_p) == 5 << 40
    kinds = [(0, c_uint32), (1, c_int), (2, c_uint64), (3, c_uint64), (4, c_int64), (5, c_int), (6, c_int64)]
    layouts = [[value("cublasLtMatrixLayout", x, *pair) for pair in kinds] for x in (matrices[0], matrices[3])]
    assert layouts == [[2, 0, 14336, 4096, 14336, 3, 5], [2, 0, 4096, 8192, 4096, 3, 7]]
    preference = products._new("cublasLtMatmulPreference", made)
    for attribute, kind, number in ((1, c_uint64, WORKSPACE), (3, c_uint32, 2), (8, c_uint32, 64)):
        products._set("cublasLtMatmulPreference", preference, attribute, kind(number))
        assert value("cublasLtMatmulPreference", preference, attribute, kind) == number
    for name, one in made:
        products._call(name, one)
