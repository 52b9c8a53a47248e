"""Matrix products by a library that is named: the call that computes one, where its operands lie as they are."""

from __future__ import annotations

import numpy as np

from einc_runtime.kernels.numpy import blas
from einc_runtime.kernels.numpy.onednn import ONEDNN, OnednnProduct
from einc_runtime.kernels.numpy.pieces import Resolved
from einc_runtime.kernels.numpy.prepacking import TakeArray


def prepare_product(product: blas.DenseProduct, library: str, take: TakeArray) -> Resolved | None:
    """Returns the call of a library, or that of `np.matmul` where the library does not have this product.

    None where a product has 16-bit floats, and no library can. `take` gives scratch memory.
    """
    if library != ONEDNN:
        return blas.prepare_product(product, library)
    narrow = product.target.dtype.itemsize == 2
    if narrow or product.is_large:
        compiled = OnednnProduct.of(product) if product.has_few_matrices or narrow else None
        if compiled is not None:
            return compiled.bind(take([compiled.scratch], np.dtype(np.uint8))), []
    return None if narrow else blas.prepare_product(product)
