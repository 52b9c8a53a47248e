"""Arrays that a user gives for a tensor of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.dlpack import as_array
from einc_runtime.plan.schema import QUANTIZED, Tensor


def read_given(tensor: Tensor, value: Any) -> Array | str:
    """An array that can be loaded, or what is wrong with it. Float32 is for tensors of bf16, too."""
    if type(value) is np.ndarray and value.dtype == storage_dtype(tensor.dtype) and value.shape == tensor.shape:
        return value
    try:
        array = as_array(tensor.name, value)
    except ArrayFault as fault:
        return fault.message + (f" ({fault.hint})" if fault.hint else "")
    dtype = find_dtype_name(array.dtype.newbyteorder("=")) or str(array.dtype)
    fits = dtype == tensor.dtype or (tensor.dtype == "bf16" and dtype == "f32")
    if fits and array.shape == tensor.shape:
        return array
    expected = f"{tensor.dtype}{list(tensor.shape)}"
    described_dtype = str(array.dtype) if dtype in QUANTIZED and tensor.dtype not in QUANTIZED else dtype
    return f"expected {expected} for {tensor.kind} '{tensor.name}', found {described_dtype}{list(array.shape)}"
