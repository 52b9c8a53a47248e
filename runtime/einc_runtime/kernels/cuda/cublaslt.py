"""Products of matrices with an epilogue by cuBLASLt: an addition and a function, before the result is stored;
and products of floats of 8 bits, whose rows and columns have scales.

The algorithm is chosen once, when a kernel is prepared: the library's first proposal for the shapes, the alignment of
the operands and the workspace of the executor. Only algorithms that add partial sums in the compute type are requested,
and none that adds in place with atomics, so the bits are the same in every replay.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from einc_runtime.errors import MissingFault
from einc_runtime.kernels.cuda.cublas import (
    COMPUTE,
    CUDA_DATA_TYPES,
    WORKSPACE,
    CublasError,
    CublasLibrary,
    open_library,
)
from einc_runtime.kernels.cuda.tuning import find_alignment
from einc_runtime.kernels.gpu import Launch
from einc_runtime.kernels.triton.gemm import Gemm

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SET = (_POINTER, _INT, _POINTER, _SIZE)

LT_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "Create": (_POINTER,),
    "Destroy": (_POINTER,),
    "MatmulDescCreate": (_POINTER, _INT, _INT),
    "MatmulDescDestroy": (_POINTER,),
    "MatmulDescSetAttribute": _SET,
    "MatrixLayoutCreate": (_POINTER, _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "MatrixLayoutDestroy": (_POINTER,),
    "MatrixLayoutSetAttribute": _SET,
    "MatmulPreferenceCreate": (_POINTER,),
    "MatmulPreferenceDestroy": (_POINTER,),
    "MatmulPreferenceSetAttribute": _SET,
    "MatmulAlgoGetHeuristic": (*[_POINTER] * 7, _INT, _POINTER, _POINTER),
    "Matmul": (*[_POINTER] * 14, _SIZE, _POINTER),
}
"""The functions that cuBLASLt and hipBLASLt have, without what their names begin with, and the types of their
arguments; all return a status."""

CUBLASLT_PROTOTYPES = {f"cublasLt{name}": types for name, types in LT_PROTOTYPES.items()} | {
    "cublasLtMatmulAlgoCheck": (*[_POINTER] * 8,),
}

_COMPUTED_IN = {"f16": 0, "bf16": 0, "f32": 0, "f8e4m3": 0}  # cudaDataType of alpha and beta: CUDA_R_32F

_ACTIVATION = {"": 1, "relu": 2, "gelu_tanh": 32}
_WITH_BIAS = 4
"""Values of the epilogue."""

_SCALES, _SCALE_MODES, _OUTER_VECTOR = (17, 18), (31, 32), 3
"""Attributes of cuBLASLt for scales of rows and columns: vectors of f32 (since 12.9; other versions propose no
algorithm). Sums of floats of 8 bits are promoted to f32 as they go, unless the attribute 25 says otherwise."""


@dataclass(frozen=True, slots=True)
class LtNames:
    """What differs between cuBLASLt and hipBLASLt: what names begin with, numbers of attributes of an operation (both
    transpositions, the epilogue, its bias) and of a matrix (matrices of a batch, and their distance), the values for a
    matrix as it is and transposed, and compute types."""

    prefix: str
    transpositions: tuple[int, int]
    epilogue: int
    bias: int
    batch: tuple[int, int]
    operations: tuple[int, int]
    compute: Mapping[str, int]


CUBLASLT = LtNames("cublasLt", (3, 4), 7, 8, (5, 6), (0, 1), COMPUTE)
"""cublasLtMatmulDescAttributes_t and cublasLtMatrixLayoutAttribute_t."""

# cublasLtMatmulPreferenceAttributes_t, and schemes of partial sums: in workspace, in the type that is computed in
_MAX_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
_IN_COMPUTE_TYPE = 2

_CUBLASLT_FILES = ("libcublasLt.so.13", "libcublasLt.so.12")


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an opaque algorithm and its properties."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", _SIZE),
        ("state", _INT),
        ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    )

    @property
    def record(self) -> bytes:
        """The algorithm itself, as it may be kept in a file."""
        return bytes(self.algorithm)


class EpilogueLibrary(Protocol):
    """What `CudaKernels` needs of a library for products with an epilogue, and for products that were tuned."""

    @property
    def version(self) -> str:
        """What algorithms that are kept in a file belong to."""

    def fits(self, product: Gemm, device: int) -> bool:
        """Whether the library has an algorithm for the product; the device is current."""

    def proposals(self, product: Gemm, device: int, limit: int) -> list[Algorithm]:
        """At most `limit` algorithms for the product, the one that `launch` takes by itself first."""

    def restore(self, record: bytes, product: Gemm, device: int) -> Algorithm | None:
        """The algorithm with this record; None where it cannot compute the product here."""

    def launch(self, product: Gemm, workspace: int, device: int, algorithm: Algorithm | None = None) -> Launch:
        """The launch of a product that fits, with WORKSPACE bytes of workspace; the device is current."""

    def close(self) -> None: ...


class LtLibrary(CublasLibrary):
    """Products as cuBLASLt and hipBLASLt take them: by descriptors of the operation and the matrices."""

    def __init__(
        self, use: Callable[[int], None], library: Any, names: LtNames, prototypes: Mapping[str, tuple[Any, ...]]
    ) -> None:
        super().__init__(use, library, prototypes, (f"{names.prefix}Create", f"{names.prefix}Destroy"))
        self.names = names
        self._descriptors: list[tuple[str, int]] = []  # of launches, each after the function that destroys it

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # a failure does not keep the others from being released
            stack.callback(super().close)
            while self._descriptors:
                stack.callback(self._call, *self._descriptors.pop())

    def _make_descriptors(
        self, product: Gemm, descriptors: list[tuple[str, int]]
    ) -> tuple[int, tuple[int, int, int, int]]:
        """Makes descriptors of the operation, A, B, C and D, and adds them to the others with their destructors."""
        p, names = product, self.names
        operation = self._new("MatmulDesc", descriptors, names.compute[p.kind], _COMPUTED_IN[p.kind])
        for attribute, is_transposed in zip(names.transpositions, (p.transpose_a, p.transpose_b), strict=True):
            self._set("MatmulDesc", operation, attribute, ctypes.c_int32(names.operations[is_transposed]))
        epilogue = _ACTIVATION[p.activation]
        if p.bias:
            epilogue = _WITH_BIAS | (epilogue if p.activation else 0)
            self._set("MatmulDesc", operation, names.bias, ctypes.c_void_p(p.bias))
        self._set("MatmulDesc", operation, names.epilogue, ctypes.c_uint32(epilogue))
        if p.is_scaled:
            for mode, pointer, scales in zip(_SCALE_MODES, _SCALES, (p.scale_m, p.scale_n), strict=True):
                self._set("MatmulDesc", operation, mode, ctypes.c_int32(_OUTER_VECTOR))
                self._set("MatmulDesc", operation, pointer, ctypes.c_void_p(scales))

        def matrix(kind: str, rows: int, columns: int, leading: int, stride: int) -> int:
            layout = self._new("MatrixLayout", descriptors, CUDA_DATA_TYPES[kind], rows, columns, leading)
            self._set("MatrixLayout", layout, names.batch[0], ctypes.c_int32(p.batch))
            self._set("MatrixLayout", layout, names.batch[1], ctypes.c_int64(stride))
            return layout

        a = matrix(p.kind, *((p.k, p.m) if p.transpose_a else (p.m, p.k)), p.lda, p.stride_a)
        b = matrix(p.kind, *((p.n, p.k) if p.transpose_b else (p.k, p.n)), p.ldb, p.stride_b)
        c, d = (matrix(p.result, p.m, p.n, p.ldc, p.stride_c) for _ in range(2))
        return operation, (a, b, c, d)

    def _new(self, kind: str, descriptors: list[tuple[str, int]], *arguments: int) -> int:
        descriptor = ctypes.c_void_p()
        self._call(f"{self.names.prefix}{kind}Create", ctypes.addressof(descriptor), *arguments)
        descriptors.append((f"{self.names.prefix}{kind}Destroy", descriptor.value or 0))
        return descriptor.value or 0

    def _set(self, kind: str, descriptor: int, attribute: int, value: Any) -> None:
        where = ctypes.addressof(value), ctypes.sizeof(value)
        self._call(f"{self.names.prefix}{kind}SetAttribute", descriptor, attribute, *where)


class CublasLt(LtLibrary):
    """See `EpilogueLibrary`. Raises MissingFault where cuBLASLt is not installed."""

    def __init__(self, use: Callable[[int], None], library: Any = None) -> None:
        library = library or open_library("cublasLt", _CUBLASLT_FILES)
        super().__init__(use, library, CUBLASLT, CUBLASLT_PROTOTYPES)
        self._algorithms: dict[tuple[Gemm, tuple[int, ...], int], Algorithm | None] = {}
        self._unit, self._zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def fits(self, product: Gemm, device: int) -> bool:
        return self._algorithm(product, device) is not None

    def launch(self, product: Gemm, workspace: int, device: int, algorithm: Algorithm | None = None) -> Launch:
        """The launch by `algorithm`, by default the library's first proposal."""
        p, handle = product, self._handle(device)
        algorithm = algorithm or self._algorithm(product, device)
        if algorithm is None:
            raise CublasError(f"cublasLt has no algorithm for {p.variant}")
        operation, (a, b, c, d) = self._make_descriptors(p, self._descriptors)
        scale, beta = ctypes.c_float(p.scale), self._unit if p.addend else self._zero
        arguments = (
            handle, operation, ctypes.addressof(scale), p.a, a, p.b, b, ctypes.addressof(beta), p.addend or p.c, c,
            p.c, d, ctypes.addressof(algorithm), workspace, WORKSPACE,
        )  # fmt: skip

        def launch(stream: int, _kept: object = (scale, beta, algorithm)) -> None:
            self._call("cublasLtMatmul", *arguments, stream)

        return launch

    @property
    def version(self) -> str:
        get = self._library.cublasLtGetVersion
        get.argtypes, get.restype = (), _SIZE
        return f"cublasLt {get()}"

    def restore(self, record: bytes, product: Gemm, device: int) -> Algorithm | None:
        """See `EpilogueLibrary`. The record may come from a file of others: the library checks it."""
        restored = Algorithm()
        restored.algorithm[:] = struct.unpack("8Q", record)
        handle = self._handle(device)
        descriptors: list[tuple[str, int]] = []
        try:
            operation, matrices = self._make_descriptors(product, descriptors)
            checked = Algorithm()
            where = ctypes.addressof(restored.algorithm), ctypes.addressof(checked)
            status = self._library.cublasLtMatmulAlgoCheck(handle, operation, *matrices, *where)
            restored.workspace = checked.workspace
            return None if status or checked.state or restored.workspace > WORKSPACE else restored
        finally:
            for name, descriptor in reversed(descriptors):
                self._call(name, descriptor)

    def close(self) -> None:
        self._algorithms.clear()
        super().close()

    def _algorithm(self, product: Gemm, device: int) -> Algorithm | None:
        """The library's first proposal or None; it is the same for products that differ in addresses alone."""
        form = replace(product, a=0, b=0, c=0, addend=int(product.addend > 0), bias=int(product.bias > 0))
        form = replace(form, scale_m=int(product.is_scaled), scale_n=int(product.is_scaled))
        alignments = tuple(find_alignment(address) for address in _addresses(product))
        key = form, (*alignments, find_alignment(product.bias)), device
        if key not in self._algorithms:
            self._algorithms[key] = None
            with contextlib.suppress(CublasError):  # a request that fails counts as no proposal
                self._algorithms[key] = next(iter(self.proposals(product, device, 1)), None)
        return self._algorithms[key]

    def proposals(self, product: Gemm, device: int, limit: int) -> list[Algorithm]:
        """At most `limit` of the library's proposals that can be used, the best first. Raises CublasError."""
        handle = self._handle(device)
        descriptors: list[tuple[str, int]] = []
        try:
            operation, matrices = self._make_descriptors(product, descriptors)
            preference = self._new("MatmulPreference", descriptors)
            self._set("MatmulPreference", preference, _MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
            self._set("MatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_IN_COMPUTE_TYPE))
            for attribute, address in zip(_ALIGNMENTS, _addresses(product), strict=True):
                self._set("MatmulPreference", preference, attribute, ctypes.c_uint32(find_alignment(address)))
            algorithms, count = (Algorithm * limit)(), ctypes.c_int(0)
            where = ctypes.addressof(algorithms), ctypes.addressof(count)
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                handle, operation, *matrices, preference, limit, *where
            )
            proposed = [] if status else [algorithms[n] for n in range(count.value)]
            return [algorithm for algorithm in proposed if not algorithm.state and algorithm.workspace <= WORKSPACE]
        finally:
            for name, descriptor in reversed(descriptors):
                self._call(name, descriptor)


def open_if_available(use: Callable[[int], None]) -> CublasLt | None:
    """The library, or None where it is not installed."""
    try:
        return CublasLt(use)
    except (MissingFault, AttributeError):
        return None


def _addresses(product: Gemm) -> tuple[int, int, int, int]:
    return product.a, product.b, product.addend or product.c, product.c
