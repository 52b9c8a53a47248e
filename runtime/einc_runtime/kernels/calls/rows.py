"""Calls of the kernels over rows: `softmax`, `rmsnorm`, `layernorm` and `rope`.

Attributes of `rope` are those of a rotation (`plan/meaning/rows.py`), and `seq_lens` of the whole tensor, where
positions are not an input. The block's bounds then say which positions are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.errors import ValueFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.meaning.rows import read_rotation
from einc_runtime.plan.meaning.terms import Application
from einc_runtime.plan.schema import Block
from einc_runtime.rotary import find_frequencies


@dataclass(frozen=True, slots=True)
class SoftmaxCall:
    """A softmax of rows along `axis`, computed in type `kind`."""

    source: Array
    target: Array
    axis: int
    kind: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> SoftmaxCall:
        source, target, axis = invocation.input, invocation.output, invocation.attribute("axis", int)
        return SoftmaxCall(source, target, axis % source.ndim, compute_type(dtype_name(target)))


@dataclass(frozen=True, slots=True)
class NormCall:
    """A norm of rows along the last axis, computed in type `kind`. `vectors` are a gain, if there is one, and behind it
    perhaps a bias of rows that are `centered`, as those of layernorm are; `offset` is added to the gain."""

    centered: bool
    source: Array
    vectors: Sequence[Array]
    target: Array
    eps: float
    offset: float
    kind: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> NormCall:
        source, *vectors = invocation.inputs
        target, centered = invocation.output, invocation.name == "layernorm"
        eps, offset = invocation.attribute("eps", float), invocation.number("offset", 0.0)
        return NormCall(centered, source, vectors, target, eps, offset, compute_type(dtype_name(target)))


@dataclass(frozen=True, slots=True)
class RopeCall:
    """The arrays of an invocation, the radians per position of each pair, and every token's position.

    `positions_are_input` says whether positions are an input, whose values are not known before the kernel runs.
    """

    source: Array
    target: Array
    frequencies: Array
    positions: Array
    positions_are_input: bool

    @staticmethod
    def parse(invocation: Invocation[Array]) -> RopeCall:
        source, target = invocation.input, invocation.output
        half, positions_are_input = source.shape[-1] // 2, len(invocation.inputs) == 2
        precision = np.float64 if dtype_name(target) == "f64" else np.float32
        numbers = read_rotation(Application("rope", (), dict(invocation.attributes)), half)
        frequencies = find_frequencies(numbers, half, precision)
        if positions_are_input:
            positions = invocation.inputs[1]
        else:
            positions = _token_positions(invocation.attribute("seq_lens", list), invocation.output_blocks[0])
        return RopeCall(source, target, frequencies, positions, positions_are_input)

    @property
    def status_message(self) -> str | None:
        """The error of an execution on a GPU, which says only that some position is wrong; None where none can be."""
        return "a position is negative; positions are 0 or more" if self.positions_are_input else None

    def require_positions(self) -> None:
        """Raises ValueFault for a negative position. The positions are read now."""
        if self.positions.min() < 0:
            raise ValueFault(f"a position is {int(self.positions.min())}; positions are 0 or more")


def _token_positions(seq_lens: Sequence[int], block: Block) -> Array:
    ends = np.cumsum(np.array(seq_lens, np.int64))
    places = np.arange(block.lower[-2], block.upper[-2])
    starts = np.concatenate([[0], ends[:-1]])
    result: Array = places - starts[np.searchsorted(ends, places, side="right")]
    return result
