"""Products of matrices in memory as cuBLAS takes them, and what they should be, computed by numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels.triton.gemm import Gemm

ACTIVATIONS = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


@dataclass(frozen=True)
class ProductCase:
    """A product without addresses; `added` names what an epilogue adds, and `gap` is between matrices and lines."""

    m: int
    n: int
    k: int
    turned: tuple[bool, bool] = (True, False)
    batch: int = 1
    kind: str = "f16"
    result: str = "f16"
    scale: float = 1.0
    added: tuple[str, ...] = ()
    activation: str = ""
    gap: int = 0

    def operands(self, seed=0):
        """Arrays of a, b, addend and bias as they lie in memory, lines first, and one for the result."""
        rng = np.random.default_rng(seed)

        def drawn(kind, *shape):
            return rng.normal(0, 1, shape).astype(storage_dtype(kind))

        a_lines, a_run = (self.m, self.k) if self.turned[0] else (self.k, self.m)
        b_lines, b_run = (self.k, self.n) if self.turned[1] else (self.n, self.k)
        arrays = {
            "a": drawn(self.kind, self.batch, a_lines, a_run + self.gap),
            "b": drawn(self.kind, self.batch, b_lines, b_run + self.gap),
            "c": np.full((self.batch, self.n, self.m + self.gap), 7, storage_dtype(self.result)),
        }
        if "addend" in self.added:
            arrays["addend"] = drawn(self.result, self.batch, self.n, self.m + self.gap)
        if "bias" in self.added:
            arrays["bias"] = drawn(self.result, self.m)
        return arrays

    def product(self, addresses):
        """The product on operands at these addresses."""
        a_lines, a_run = (self.m, self.k) if self.turned[0] else (self.k, self.m)
        b_lines, b_run = (self.k, self.n) if self.turned[1] else (self.n, self.k)
        apart = [(run + self.gap, lines * (run + self.gap)) for lines, run in
                 ((a_lines, a_run), (b_lines, b_run), (self.n, self.m))]  # fmt: skip
        (lda, sa), (ldb, sb), (ldc, sc) = apart
        gemm = Gemm(*self.turned, self.m, self.n, self.k, addresses["a"], lda, sa, addresses["b"], ldb, sb,
                   addresses["c"], ldc, sc, self.batch, self.kind, self.result, self.scale)  # fmt: skip
        named = {name: addresses[name] for name in self.added}
        return replace(gemm, **named, activation=self.activation)

    def products(self, arrays):
        """scale op(A) op(B), with the result's lines first."""
        a, b = (arrays[name].astype("f8") for name in "ab")
        a = a[:, :, : self.k] if self.turned[0] else a[:, :, : self.m].swapaxes(1, 2)
        b = b[:, :, : self.n].swapaxes(1, 2) if self.turned[1] else b[:, :, : self.k]
        return self.scale * np.einsum("bnk,bmk->bnm", b, a)

    def expected(self, arrays):
        value = self.products(arrays)
        if "addend" in arrays:
            value = value + arrays["addend"][:, :, : self.m].astype("f8")
        if "bias" in arrays:
            value = value + arrays["bias"].astype("f8")
        return ACTIVATIONS[self.activation](value)


TOLERANCE = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5}
"""Of the largest value: a rounding or two."""


def require_close(computed, expected, kind):
    """Also that nothing beside the result was written: there it is 7."""
    computed_part = computed[:, :, : expected.shape[2]].astype("f8")
    assert np.abs(computed_part - expected).max() <= TOLERANCE[kind] * np.abs(expected).max()
    assert (computed[:, :, expected.shape[2] :].astype("f8") == 7).all()


GATES = {
    "t0 = silu x0; t1 = mul t0 x1": lambda x, y: x / (1 + np.exp(-x)) * y,
    "t0 = gelu_tanh x1; t1 = mul x0 t0": lambda x, y: (
        x * y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    ),
}
"""Programs of two products, and what they mean."""

CASES = [
    ProductCase(37, 21, 50),
    ProductCase(37, 21, 50, gap=3),
    ProductCase(32, 32, 32, turned=(False, False), kind="bf16", result="bf16"),
    ProductCase(33, 16, 40, turned=(False, True), kind="f32", result="f32", scale=0.25),
    ProductCase(16, 48, 17, turned=(True, True), result="f32"),
    ProductCase(19, 35, 16, batch=3, gap=1, kind="bf16", result="bf16"),
    ProductCase(40, 5, 33, added=("addend",)),
    ProductCase(40, 18, 33, added=("bias",), activation="relu", scale=-1.5),
    ProductCase(23, 18, 31, added=("addend", "bias"), activation="gelu_tanh", kind="bf16", result="bf16"),
    ProductCase(1, 1, 1, kind="f32", result="f32", activation="relu"),
]
