"""Products of matrices by cuBLAS, through cupy's thin binding: f16, bf16, f32 and f64, summed in f32 or f64.

A product takes its workspace from the executor: cuBLAS is then free of allocations in a capture, streams share nothing,
and the same product has the same bits whenever it runs. Sums of 16-bit results are not split into 16-bit parts.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Protocol

from runtime.errors import KernelFault, MissingFault
from runtime.kernels.gemm import Gemm
from runtime.kernels.gpu_base import Launch

WORKSPACE = 32 << 20
"""Bytes: what NVIDIA recommends for Hopper. Smaller ones are no faster anywhere."""

TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 14}
"""cudaDataType."""

COMPUTE = {"f16": 68, "bf16": 68, "f32": 68, "f64": 70}
"""cublasComputeType: 32F and 64F."""

NAMES = {
    "create": 0, "destroy": 1, "getVersion": 1, "gemmStridedBatchedEx": 23, "setMathMode": 2, "setStream": 2,
}  # fmt: skip
"""What is called of cupy's binding, with how many arguments; a test holds it against the installed cupy."""

_NO_REDUCED_PRECISION = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
_DEFAULT_ALGORITHM = -1


class Products(Protocol):
    """What the registry needs of a library for products of matrices."""

    def version(self, device: int) -> str: ...

    def launch(self, product: Gemm, pointers: tuple[int, int, int], workspace: int, device: int) -> Launch:
        """Pointers to A, B and C; the device is current, and has a handle of its own."""

    def close(self) -> None: ...


class Cublas:
    """See `Products`. Raises MissingFault where cupy or cuBLAS is not there."""

    def __init__(self) -> None:
        try:
            from cupy_backends.cuda.libs import cublas

            cublas.gemmStridedBatchedEx  # noqa: B018 -- the library is loaded by the first look at it
        except (ImportError, AttributeError) as error:
            hint = "install CUDA's libraries, such as the package nvidia-cublas-cu12"
            raise MissingFault("products of matrices need cuBLAS, which is not here", hint=hint) from error
        self._library: Any = cublas
        self._handles: dict[int, int] = {}
        self._set_workspace = _set_workspace()
        self._one = {"f32": ctypes.c_float(1), "f64": ctypes.c_double(1)}
        self._zero = {"f32": ctypes.c_float(0), "f64": ctypes.c_double(0)}

    def version(self, device: int) -> str:
        number = int(self._library.getVersion(self._handle(device)))
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def launch(self, product: Gemm, pointers: tuple[int, int, int], workspace: int, device: int) -> Launch:
        library, handle, p = self._library, self._handle(device), product
        scalar = "f64" if p.kind == "f64" else "f32"
        arguments = (
            handle, int(p.transpose_a), int(p.transpose_b), p.m, p.n, p.k, ctypes.addressof(self._one[scalar]),
            pointers[0], TYPES[p.kind], p.lda, p.stride_a, pointers[1], TYPES[p.kind], p.ldb, p.stride_b,
            ctypes.addressof(self._zero[scalar]), pointers[2], TYPES[p.result], p.ldc, p.stride_c, p.batch,
            COMPUTE[p.kind], _DEFAULT_ALGORITHM,
        )  # fmt: skip

        def launch(stream: int) -> None:
            library.setStream(handle, stream)
            if self._set_workspace is not None and workspace:  # after the stream, which resets it
                status = self._set_workspace(handle, workspace, WORKSPACE)
                if status:
                    raise KernelFault(f"cuBLAS does not take its workspace: status {status}")
            library.gemmStridedBatchedEx(*arguments)

        return launch

    def close(self) -> None:
        while self._handles:
            self._library.destroy(self._handles.popitem()[1])

    def _handle(self, device: int) -> int:
        if device not in self._handles:
            handle = int(self._library.create())
            self._library.setMathMode(handle, _NO_REDUCED_PRECISION)
            self._handles[device] = handle
        return self._handles[device]


def _set_workspace() -> Any:
    """cublasSetWorkspace of the library that cupy has loaded, which cupy does not bind; None where it is not found."""
    for name in ("libcublas.so.13", "libcublas.so.12", "libcublas.so.11"):
        try:
            function = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW).cublasSetWorkspace_v2
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        function.restype = ctypes.c_int
        return function
    return None
