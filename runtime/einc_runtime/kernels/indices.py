"""Arrays whose dimensions have names, and operands that an index equation joins.

`join` checks an equation against the shapes of the operands, so that later steps can rely on every extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import dtype_name
from einc_runtime.plan.index_equations import IndexEquation, Names


@dataclass(frozen=True, slots=True)
class NamedArray:
    """An array whose dimensions have names."""

    names: Names
    array: Array

    @property
    def kind(self) -> str:
        """The plan's name for the type of its elements."""
        return dtype_name(self.array)

    def with_array(self, array: Array) -> NamedArray:
        return NamedArray(self.names, array)

    def align(self, order: Sequence[str]) -> Array:
        """The array transposed to `order`, with extent 1 for indices that it lacks."""
        present = [name for name in order if name in self.names]
        transposed = self.array.transpose([self.names.index(name) for name in present])
        extents = dict(zip(present, transposed.shape, strict=True))
        return transposed.reshape([extents.get(name, 1) for name in order])


@dataclass(frozen=True, slots=True)
class JoinedOperands:
    """Operands as views without repeated indices, and the extent of every index in order of appearance."""

    operands: tuple[NamedArray, ...]
    extents: dict[str, int]

    def align(self, order: Sequence[str]) -> tuple[Array, ...]:
        """All operands transposed to `order`."""
        return tuple(operand.align(order) for operand in self.operands)


def join(equation: IndexEquation, inputs: Sequence[Array], output: Array) -> JoinedOperands:
    """Checks the equation against shapes. The result may have indices that no input has: it is broadcast there.

    Raises PlanFault.
    """
    extents = equation.bind([array.shape for array in inputs], output.shape)
    return JoinedOperands(tuple(map(_merge_repeated_indices, equation.inputs, inputs)), extents)


def _merge_repeated_indices(names: Names, array: Array) -> NamedArray:
    """The array with each repeated index once: its stride is the sum of the strides of its dimensions."""
    unique = tuple(dict.fromkeys(names))
    if len(unique) == len(names):
        return NamedArray(names, array)
    strides = dict.fromkeys(unique, 0)
    extents = dict(zip(names, array.shape, strict=True))
    for name, stride in zip(names, array.strides, strict=True):
        strides[name] += stride
    shape = [extents[name] for name in unique]
    return NamedArray(unique, np.lib.stride_tricks.as_strided(array, shape, list(strides.values()), writeable=False))
