"""Products of matrices as libraries take them: stacks whose rows or columns lie together in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from einc_runtime.dtypes import Array

MIN_LIBRARY_PRODUCTS = 1 << 18
"""Products of numbers below which `np.matmul` is as fast as a call of a library, and no layout of operands is kept."""
MAX_LOOPED_MATRICES = 64
"""Stacks of up to so many matrices are multiplied by a direct call; numpy loops over larger ones."""


@dataclass(frozen=True, slots=True)
class DenseProduct:
    """`left @ right`, for stacks of matrices as `np.matmul` takes them."""

    left: Array
    right: Array
    target: Array

    @property
    def is_large(self) -> bool:
        """Whether it is large enough for a direct call of a library, and one of few matrices."""
        return self.multiplications >= MIN_LIBRARY_PRODUCTS and self.has_few_matrices

    @property
    def has_few_matrices(self) -> bool:
        return bool(math.prod(self.target.shape[:-2]) <= MAX_LOOPED_MATRICES)

    @property
    def multiplications(self) -> int:
        """In each matrix."""
        rows, columns = self.target.shape[-2:]
        return int(rows * columns * self.left.shape[-1])


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """One product of stacks of matrices. All three are transposed where that makes the target row-major."""

    left: Array
    right: Array
    target: Array
    turned: bool

    @staticmethod
    def of(product: DenseProduct) -> MatrixProduct | None:
        """None where a library cannot read the operands as they lie in memory."""
        left, right, target = product.left, product.right, product.target
        if not left.dtype == right.dtype == target.dtype:
            return None
        turned = not _lies_by_rows(target)
        if turned:  # the transposes' product is the product's transpose
            left, right, target = (array.swapaxes(-1, -2) for array in (right, left, target))
        readable = all(_lies_by_rows(array) or _lies_by_rows(array.swapaxes(-1, -2)) for array in (left, right))
        return MatrixProduct(left, right, target, turned) if readable and _lies_by_rows(target) else None


def _lies_by_rows(array: Array) -> bool:
    """Whether the elements of a row are neighbours, and rows do not overlap."""
    columns, (row, column), size = array.shape[-1], array.strides[-2:], array.itemsize
    return bool(column == size and row % size == 0 and row >= columns * size)
