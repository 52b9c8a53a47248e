"""One product of matrices, or a batch of them, as cuBLAS takes it, and how strided operands become one.

cuBLAS reads matrices in column order: an element (row, column) of A is at row + column * lda. `transpose` means that
the transposed matrix is stored. Results in row order are products of the swapped, transposed operands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc_runtime.dtypes import ITEMSIZE

LIMIT = 1 << 31
"""The limit of extents and leading dimensions: cuBLAS takes 32-bit integers."""

SLAB = 32 << 20
"""Bytes that fit into the cache of a large GPU while all matrices of a batch read them."""

MAX_SLABS = 16
"""The greatest number of launches that replace one."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """C = scale op(A) op(B) for `batch` matrices, which lie `stride_a` (and so on) elements apart.

    `kind` is the type of A and B, `result` that of C. Sums are in f32 (f64 for f64), and multiplied by `scale` before
    they are rounded. With an epilogue the result is activation(scale op(A) op(B) + addend + bias): `addend` is the
    address of a matrix of C's form, `bias` that of a column, both of C's type; they are 0, and `activation` is "",
    where there is none. Products of floats of 8 bits are multiplied with the f32 of their row at `scale_m` and of their
    column at `scale_n`, too.
    """

    transpose_a: bool
    transpose_b: bool
    m: int
    n: int
    k: int
    a: int
    lda: int
    stride_a: int
    b: int
    ldb: int
    stride_b: int
    c: int
    ldc: int
    stride_c: int
    batch: int
    kind: str
    result: str
    scale: float = 1.0
    addend: int = 0
    bias: int = 0
    activation: str = ""
    scale_m: int = 0
    scale_n: int = 0

    @property
    def epilogue(self) -> str:
        """A name such as `add relu`; empty where there is none."""
        parts = "add" if self.addend else "", "bias" if self.bias else "", self.activation
        return " ".join(part for part in parts if part)

    @property
    def variant(self) -> str:
        """A name such as `gemm tn f16 128x256x64 add relu`; a batch has its size before the shape."""
        shape = f"{self.m}x{self.n}x{self.k}"
        letters = "nt"[self.transpose_a] + "nt"[self.transpose_b]
        kinds = self.kind if self.kind == self.result else f"{self.kind} to {self.result}"
        batch = f"{self.batch} of " if self.batch > 1 else ""
        scaled = " scaled" if self.is_scaled else ""
        return f"gemm {letters} {kinds} {batch}{shape}{scaled} {self.epilogue}".rstrip()

    @property
    def is_scaled(self) -> bool:
        """Whether rows and columns of the result have scales."""
        return self.scale_m > 0


@dataclass(frozen=True, slots=True)
class Axis:
    """An extent and the stride of its elements."""

    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A strided matrix: address, rows and columns."""

    address: int
    rows: Axis
    columns: Axis

    def find_order(self) -> tuple[bool, int] | None:
        """Whether the matrix is in row order, and its leading dimension; None if it is in neither order."""
        for by_rows, run, lines in ((True, self.columns, self.rows), (False, self.rows, self.columns)):
            if run.extent > 1 and run.stride != 1:
                continue
            leading = lines.stride if lines.extent > 1 else max(1, run.extent)
            if run.extent <= leading < LIMIT:
                return by_rows, leading
        return None


def merge_strided(axes: Sequence[Axis]) -> Axis | None:
    """Several axes, the outermost first, as one axis; None if they have no common stride."""
    long = [axis for axis in axes if axis.extent > 1]
    if any(outer.stride != inner.extent * inner.stride for outer, inner in itertools.pairwise(long)):
        return None
    return Axis(math.prod(axis.extent for axis in long), long[-1].stride) if long else Axis(1, 1)


def make_gemm(
    a: Matrix, b: Matrix, c: Matrix, batch: tuple[int, int, int, int], kind: str, result: str, scale: float = 1.0
) -> Gemm | None:
    """C = scale A B; None for what cuBLAS does not take. `batch` is the number of matrices and their distances in a,
    b, c."""
    stored = [matrix.find_order() for matrix in (a, b, c)]
    if max(a.rows.extent, a.columns.extent, b.columns.extent, batch[0]) >= LIMIT:
        return None
    if stored[0] is None or stored[1] is None or stored[2] is None:
        return None
    (a_rows, lda), (b_rows, ldb), (c_rows, ldc) = stored[0], stored[1], stored[2]
    count, stride_a, stride_b, stride_c = batch
    m, n, k = a.rows.extent, b.columns.extent, a.columns.extent
    if not c_rows:
        return Gemm(a_rows, b_rows, m, n, k, a.address, lda, stride_a, b.address, ldb, stride_b,
                    c.address, ldc, stride_c, count, kind, result, scale)  # fmt: skip
    return Gemm(not b_rows, not a_rows, n, m, k, b.address, ldb, stride_b, a.address, lda, stride_a,
                c.address, ldc, stride_c, count, kind, result, scale)  # fmt: skip


def split_for_cache(product: Gemm) -> list[Gemm]:
    """Parts of a batch whose matrices all share a large operand, as all heads share the activations.

    cuBLAS goes through the matrices one after another. A shared operand that is larger than the cache is then read from
    memory for each of them. In parts that fit into the cache it is read once.
    """
    p, size = product, ITEMSIZE[product.kind]
    if p.batch == 1 or (p.stride_a and p.stride_b):
        return [p]
    by_rows = p.stride_b != 0  # then A is shared, and the rows of the result are cut
    extent = p.m if by_rows else p.n
    if extent * p.k * size <= 2 * SLAB or p.epilogue:
        return [p]
    step = max(SLAB // (p.k * size), -(-extent // MAX_SLABS))
    step = -(-step // 256) * 256
    parts = []
    for start in range(0, extent, step):
        count = min(step, extent - start)
        if by_rows:
            apart = p.lda if p.transpose_a else 1
            parts.append(replace(p, m=count, a=p.a + start * apart * size, c=p.c + start * ITEMSIZE[p.result]))
        else:
            apart = 1 if p.transpose_b else p.ldb
            parts.append(replace(p, n=count, b=p.b + start * apart * size, c=p.c + start * p.ldc * ITEMSIZE[p.result]))
    return parts
