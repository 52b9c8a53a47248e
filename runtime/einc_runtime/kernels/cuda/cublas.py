"""Products of matrices by cuBLAS: f16, bf16, f32 and f64, summed in f32 or f64.

The library is called directly, since cupy's binding refuses every call in a capture and moves each product to cupy's
own stream.

The executor gives products their workspace. So cuBLAS allocates nothing in a capture, streams share nothing, and the
same product always has the same bits. Sums of 16-bit results are not split into 16-bit parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_cuda
from einc_runtime.kernels.gpu import Launch
from einc_runtime.kernels.triton.gemm import Gemm

WORKSPACE = 32 << 20
"""Bytes, as NVIDIA recommends for Hopper. Less is not faster on other devices."""

CUDA_DATA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14, "f8e4m3": 28}
"""cudaDataType."""

COMPUTE = {"f16": 68, "bf16": 68, "f32": 68, "f64": 70, "f8e4m3": 68}
"""cublasComputeType: 32F and 64F."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong

CUBLAS_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (_POINTER,),
    "cublasDestroy_v2": (_POINTER,),
    "cublasGetVersion_v2": (_POINTER, _POINTER),
    "cublasSetMathMode": (_POINTER, _INT),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasGemmEx": (
        _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT,
        _POINTER, _POINTER, _INT, _INT, _INT, _INT,
    ),
    "cublasGemmStridedBatchedEx": (
        _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _LONG, _POINTER, _INT, _INT, _LONG,
        _POINTER, _POINTER, _INT, _INT, _LONG, _INT, _INT, _INT,
    ),
}  # fmt: skip
"""The functions that are called, with the types of their arguments; all return a status."""

_CUBLAS_FILES = ("libcublas.so.13", "libcublas.so.12")
_LIBRARY_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib")
"""The folders of NVIDIA's packages for CUDA 13 and 12."""
_NO_REDUCED_PRECISION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_ALLOCATION_FAILED = 3  # CUBLAS_STATUS_ALLOC_FAILED
_STATUS = {
    1: "not initialized", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch", 11: "mapping error",
    13: "execution failed", 14: "internal error", 15: "not supported",
}  # fmt: skip


class CublasError(Exception):
    """A call of cuBLAS failed; the message has its status."""


class CublasOutOfMemory(CublasError):
    """cuBLAS could not allocate memory."""


class ProductLibrary(Protocol):
    """What `CudaKernels` needs of a library for products of matrices."""

    def version(self, device: int) -> str: ...

    def launch(self, product: Gemm, pointers: tuple[int, int, int], workspace: int, device: int) -> Launch:
        """The launch of a product, with pointers to A, B, C and to WORKSPACE bytes; the device is current."""

    def close(self) -> None: ...


class CublasLibrary:
    """A library whose functions return a status, with a handle for every device; `use` makes a device current.

    `handles` are the names of the functions that create and destroy a handle.
    """

    def __init__(
        self,
        use: Callable[[int], None],
        library: Any,
        prototypes: Mapping[str, tuple[Any, ...]],
        handles: tuple[str, str],
    ) -> None:
        self._use, self._library = use, library
        for name, arguments in prototypes.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._create, self._destroy = handles
        self._handles: dict[int, int] = {}

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # a failure does not keep the others from being released
            while self._handles:
                device, handle = self._handles.popitem()
                stack.callback(self._call, self._destroy, handle)
                stack.callback(self._use, device)

    def _handle(self, device: int) -> int:
        """The handle of a device, which is current."""
        if device not in self._handles:
            handle = ctypes.c_void_p()
            self._call(self._create, ctypes.addressof(handle))
            self._handles[device] = handle.value or 0
            self._set_up(self._handles[device])
        return self._handles[device]

    def _set_up(self, handle: int) -> None:
        """Sets up a new handle."""

    def _call(self, name: str, *arguments: int) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            kind = CublasOutOfMemory if status == _ALLOCATION_FAILED else CublasError
            raise kind(f"{name}: status {status} ({_STATUS.get(status, 'unknown')})")


class Cublas(CublasLibrary):
    """See `ProductLibrary`. Raises MissingFault where cuBLAS is not installed."""

    def __init__(self, use: Callable[[int], None], library: Any = None) -> None:
        super().__init__(use, library or open_library(), CUBLAS_PROTOTYPES, ("cublasCreate_v2", "cublasDestroy_v2"))
        self._numbers: dict[tuple[Any, float], Any] = {}

    def version(self, device: int) -> str:
        number = ctypes.c_int()
        self._call("cublasGetVersion_v2", self._handle(device), ctypes.addressof(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def _number(self, kind: str, value: float) -> int:
        """The address of a number in the type in which products of type `kind` are summed."""
        scalar = ctypes.c_double if kind == "f64" else ctypes.c_float
        return ctypes.addressof(self._numbers.setdefault((scalar, value), scalar(value)))

    def launch(self, product: Gemm, pointers: tuple[int, int, int], workspace: int, device: int) -> Launch:
        handle, p = self._handle(device), product
        scale, zero = (self._number(p.kind, value) for value in (p.scale, 0.0))
        (a, b, c), kind, result = pointers, CUDA_DATA_TYPES[p.kind], CUDA_DATA_TYPES[p.result]
        shape = int(p.transpose_a), int(p.transpose_b), p.m, p.n, p.k
        how = COMPUTE[p.kind], _DEFAULT_ALGORITHM
        arguments: tuple[int, ...] = (
            handle, *shape, scale, a, kind, p.lda, b, kind, p.ldb, zero, c, result, p.ldc, *how,
        )  # fmt: skip
        if p.batch != 1:
            arguments = (
                handle, *shape, scale, a, kind, p.lda, p.stride_a, b, kind, p.ldb, p.stride_b,
                zero, c, result, p.ldc, p.stride_c, p.batch, *how,
            )  # fmt: skip
        name = "cublasGemmEx" if p.batch == 1 else "cublasGemmStridedBatchedEx"

        def launch(stream: int) -> None:
            self._call("cublasSetStream_v2", handle, stream)
            self._call("cublasSetWorkspace_v2", handle, workspace, WORKSPACE)  # after the stream, which resets it
            self._call(name, *arguments)

        return launch

    def _set_up(self, handle: int) -> None:
        self._call("cublasSetMathMode", handle, _NO_REDUCED_PRECISION)


def open_library(library: str = "cublas", files: Sequence[str] = _CUBLAS_FILES) -> Any:
    """Opens a library: the one that is already loaded, that of NVIDIA's Python packages, or that of the system.

    `files` are its names for CUDA 13 and 12. Raises MissingFault.
    """
    packaged = (
        Path(entry) / folder / name for entry in sys.path for folder, name in zip(_LIBRARY_FOLDERS, files, strict=True)
    )
    names = [*(str(path) for path in packaged if path.exists()), *files]
    with contextlib.suppress(Exception):  # comes with cupy 14, raises errors of its own, and may find nothing
        from cuda.pathfinder import load_nvidia_dynamic_lib

        names.insert(0, load_nvidia_dynamic_lib(library).abs_path or names[0])
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    hint = f"install CUDA's libraries, or this one beside einc: {suggest_cuda(only='nvidia-cublas')}"
    raise MissingFault("products of matrices need cuBLAS, which is not here", hint=hint)
