"""Which library multiplies matrices, and the calls that compute products.

oneDNN multiplies where it is installed, and numpy's OpenBLAS what oneDNN has no fast way for: f64, products with a
vector, and small ones. On all processors that were measured, oneDNN takes less time than OpenBLAS, which packs its
operands in every call. Which of the two multiplies decides about the last bits of results, and follows from the plan
and the processor's instructions alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import find_dtype_name
from einc_runtime.kernels.numpy import onednn
from einc_runtime.kernels.numpy.onednn import ONEDNN, OnednnProduct
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.numpy.prepacking import MIN_PACKED_PRODUCTS, TakeArray
from einc_runtime.kernels.numpy.products import DenseProduct
from einc_runtime.kernels.processor import find_instructions, name_processor

OPENBLAS = "openblas"
FAST_INSTRUCTIONS = {"bf16": frozenset({"avx512bf16", "amx-bf16"}), "f16": frozenset({"avx512fp16", "amx-fp16"})}
"""What a processor has, at least one of these, where products of 16-bit floats are computed in them: they are faster
than those of f32, or (f16 with `avx512fp16`) as fast with half of the memory. Elsewhere they are computed in f32."""


def choose_library(product: DenseProduct, side: int | None) -> str:
    """The library for a product whose operand on `side` (left is 0, right is 1) is constant; None: neither is."""
    kind = find_dtype_name(product.target.dtype)
    if kind in FAST_INSTRUCTIONS:
        return ONEDNN
    if kind != "f32" or product.multiplications < MIN_PACKED_PRODUCTS:
        return OPENBLAS
    rows, columns = product.target.shape[-2:]
    extent = min(rows, columns) if side is None else columns if side == 0 else rows
    # A product with a vector reads its matrix once, and packing does not help.
    return ONEDNN if extent > 1 and onednn.is_available() else OPENBLAS


def prepare_product(product: DenseProduct, library: str, take: TakeArray) -> Resolved | None:
    """Returns the call of a library, or that of `np.matmul` where oneDNN does not have this product.

    None where a product has 16-bit floats, and oneDNN cannot compute it. `take` gives scratch memory.
    """
    narrow = product.target.dtype.itemsize == 2
    if library == ONEDNN and (narrow or product.is_large):
        compiled = OnednnProduct.of(product)
        if compiled is not None:
            return compiled.bind(take([compiled.scratch], np.dtype(np.uint8))), []
    return None if narrow else (np.matmul, [product.left, product.right, product.target])


def is_multiplied(kind: str) -> bool:
    """Whether products of this 16-bit type are computed by instructions for it (`FAST_INSTRUCTIONS`)."""
    instructions = FAST_INSTRUCTIONS.get(kind, frozenset())
    return bool(instructions & find_instructions()) and onednn.is_available()


def packs_few_rows(kind: str) -> bool:
    """Whether oneDNN multiplies few rows by constant operands of this type in a packed form."""
    return is_multiplied(kind) or (kind == "f32" and onednn.is_available())


def describe() -> dict[str, Any] | None:
    """Which library multiplies large products, for a user; None while there was none."""
    if not onednn.was_needed():
        return None
    packed = {kind: ONEDNN if packs_few_rows(kind) else OPENBLAS for kind in ("f32", *FAST_INSTRUCTIONS)}
    return {"processor": name_processor(), "products": {kind: {"library": name} for kind, name in packed.items()}}
