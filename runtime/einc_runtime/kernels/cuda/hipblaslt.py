"""Products of matrices on AMD's GPUs by hipBLASLt: f16, bf16 and f32, summed in f32. It has cuBLASLt's functions.

The library's first proposal is taken for each product, as for products with an epilogue on NVIDIA's GPUs. Its workspace
is that of the executor, so that nothing is allocated in a capture.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from einc_runtime.errors import MissingFault
from einc_runtime.kernels.cuda.cublas import WORKSPACE, CublasError
from einc_runtime.kernels.cuda.cublaslt import LT_PROTOTYPES, LtLibrary, LtNames
from einc_runtime.kernels.gpu import Launch
from einc_runtime.kernels.triton.gemm import Gemm

HIPBLASLT = LtNames("hipblasLt", (0, 1), 2, 3, (0, 1), (111, 112), {"f16": 2, "bf16": 2, "f32": 2})
"""hipblasLtMatmulDescAttributes_t, hipblasLtMatrixLayoutAttribute_t, hipblasOperation_t and hipblasComputeType_t of
ROCm 6 and later."""

_HIPBLASLT_PROTOTYPES = {f"hipblasLt{name}": types for name, types in LT_PROTOTYPES.items()} | {
    "hipblasLtGetVersion": (ctypes.c_void_p, ctypes.c_void_p),
}

_HIPBLASLT_FILES = ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so")
_HIP_MAX_WORKSPACE = 1  # HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

_PROPOSAL = ctypes.c_uint64 * 64
"""Room for one hipblasLtMatmulHeuristicResult_t, which has 56 bytes in ROCm 6 and more since. It begins with the
algorithm, and nothing else of it is read: the library counts the proposals that hold."""


class HipProducts(LtLibrary):
    """See `cublas.ProductLibrary`. Raises MissingFault where hipBLASLt is not installed."""

    def __init__(self, use: Callable[[int], None], library: Any = None) -> None:
        super().__init__(use, library or _open_library(), HIPBLASLT, _HIPBLASLT_PROTOTYPES)
        self._proposals: dict[tuple[Gemm, int], Any] = {}

    def version(self, device: int) -> str:
        number = ctypes.c_int()
        self._call("hipblasLtGetVersion", self._handle(device), ctypes.addressof(number))
        return f"hipblasLt {number.value}"

    def launch(self, product: Gemm, pointers: tuple[int, int, int], workspace: int, device: int) -> Launch:
        a, b, c = pointers
        placed, handle = replace(product, a=a, b=b, c=c), self._handle(device)
        proposal = self._find_proposal(placed, device)
        operation, (left, right, added, result) = self._make_descriptors(placed, self._descriptors)
        scale, zero = ctypes.c_float(product.scale), ctypes.c_float(0.0)
        arguments = (
            handle, operation, ctypes.addressof(scale), a, left, b, right, ctypes.addressof(zero), c, added, c, result,
            ctypes.addressof(proposal), workspace, WORKSPACE,
        )  # fmt: skip

        def launch(stream: int, _kept: object = (scale, zero, proposal)) -> None:
            self._call("hipblasLtMatmul", *arguments, stream)

        return launch

    def _find_proposal(self, product: Gemm, device: int) -> Any:
        """The library's first proposal, which is one for products that differ in addresses alone. Raises CublasError
        where there is none, as for f64."""
        key = replace(product, a=0, b=0, c=0), device
        if key not in self._proposals:
            if product.kind not in HIPBLASLT.compute:
                raise CublasError(f"hipblasLt multiplies no {product.kind}")
            self._proposals[key] = self._ask(product, device)
        return self._proposals[key]

    def _ask(self, product: Gemm, device: int) -> Any:
        descriptors: list[tuple[str, int]] = []
        try:
            operation, matrices = self._make_descriptors(product, descriptors)
            preference = self._new("MatmulPreference", descriptors)
            self._set("MatmulPreference", preference, _HIP_MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE))
            proposal, count = _PROPOSAL(), ctypes.c_int(0)
            where = ctypes.addressof(proposal), ctypes.addressof(count)
            self._call(
                "hipblasLtMatmulAlgoGetHeuristic", self._handle(device), operation, *matrices, preference, 1, *where
            )
            if not count.value:
                raise CublasError(f"hipblasLt has no algorithm for {product.variant}")
            return proposal
        finally:
            for name, descriptor in reversed(descriptors):
                self._call(name, descriptor)


def _open_library() -> Any:
    for name in _HIPBLASLT_FILES:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise MissingFault("products of matrices need hipBLASLt, which is not here", hint="install ROCm's hipblaslt")
