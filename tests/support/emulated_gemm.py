"""An emulation of cuBLAS's gemmStridedBatchedEx and of cuBLASLt's epilogues on the host's memory."""

from __future__ import annotations

import ctypes

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels.triton.launches import SCRATCH


def multiply(product, workspace=0):
    """Sums in f64, rounded once. Refuses what cuBLAS refuses."""
    p = product
    assert min(p.m, p.n, p.k, p.batch) >= 1
    assert p.lda >= (p.k if p.transpose_a else p.m)
    assert p.ldb >= (p.n if p.transpose_b else p.k)
    assert p.ldc >= p.m
    assert max(p.m, p.n, p.k, p.lda, p.ldb, p.ldc, p.batch) < 2**31
    assert p.result == p.kind or (p.kind in ("f16", "bf16") and p.result == "f32") or p.kind == "f8e4m3"
    if p.kind == "f8e4m3":  # cuBLASLt: both matrices along k, in lines of 16 bytes
        assert p.transpose_a
        assert not p.transpose_b
        assert p.is_scaled
        assert p.batch == 1
        assert p.result in ("f16", "bf16", "f32")
        assert not any(size % 16 for size in (p.m, p.k, p.lda, p.ldb, p.a, p.b, p.c))
    a_shape = (p.k, p.m) if p.transpose_a else (p.m, p.k)
    b_shape = (p.n, p.k) if p.transpose_b else (p.k, p.n)
    a = stack(p.a, a_shape, p.lda, p.stride_a, p.batch, p.kind, workspace)
    b = stack(p.b, b_shape, p.ldb, p.stride_b, p.batch, p.kind, workspace)
    c = stack(p.c, (p.m, p.n), p.ldc, p.stride_c, p.batch, p.result, workspace)
    a, b = (x.swapaxes(1, 2) if turned else x for x, turned in ((a, p.transpose_a), (b, p.transpose_b)))
    value = p.scale * (a.astype("f8") @ b.astype("f8"))
    if p.is_scaled:
        scales = (stack(p.scale_m, (p.m, 1), p.m, 0, 1, "f32", workspace),
                  stack(p.scale_n, (1, p.n), 1, 0, 1, "f32", workspace))  # fmt: skip
        value = value * scales[0].astype("f8") * scales[1].astype("f8")
    if p.addend:
        value = value + stack(p.addend, (p.m, p.n), p.ldc, p.stride_c, p.batch, p.result, workspace).astype("f8")
    if p.bias:
        value = value + stack(p.bias, (p.m, 1), p.m, 0, 1, p.result, workspace).astype("f8")
    c[...] = ACTIVATIONS[p.activation](value).astype(c.dtype)


ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def stack(address, shape, leading, stride, batch, kind, workspace):
    """Matrices in column order, batch first."""
    dtype = storage_dtype(kind)
    if address >= SCRATCH:
        address += workspace - SCRATCH
    size = dtype.itemsize
    reach = (batch - 1) * stride + (shape[1] - 1) * leading + shape[0]
    flat = np.frombuffer((ctypes.c_char * (reach * size)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, (batch, *shape), (stride * size, size, leading * size))
