"""Calls of the kernels over rows: `softmax`, `rmsnorm`, `layernorm` and `rope`, checked against their operands.

Attributes of `rope` are those of a rotation (`plan/meaning/rows.py`), and `seq_lens` of the whole tensor, where
positions are not an input. The block's bounds then say which positions are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.errors import PlanFault, ValueFault
from einc_runtime.kernels.base import Invocation, dtype_name
from einc_runtime.plan.meaning.rows import read_rotation
from einc_runtime.plan.meaning.terms import Application
from einc_runtime.plan.schema import Attribute, Block
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
        invocation.allow("axis")
        source, target, axis = invocation.input, invocation.output, invocation.attribute("axis", int)
        kind = compute_type(dtype_name(target))
        if source.shape != target.shape or source.dtype != target.dtype or kind not in ("f32", "f64"):
            raise PlanFault("a softmax has one floating input and an output of its shape and type")
        if not -source.ndim <= axis < source.ndim:
            raise PlanFault(f"softmax over axis {axis} of a tensor of {source.ndim} dimensions")
        return SoftmaxCall(source, target, axis % source.ndim, kind)


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
        invocation.allow("eps", "offset")
        name, target, eps = invocation.name, invocation.output, invocation.number("eps")
        centered = name == "layernorm"
        source, *vectors = invocation.operands(min(max(len(invocation.inputs), 1), 3 if centered else 2))
        kind = compute_type(dtype_name(target))
        if kind not in ("f32", "f64") or any(x.dtype != target.dtype for x in invocation.inputs):
            raise PlanFault(f"{name} has floating inputs of one type, and an output of that type")
        if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in vectors):
            raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in vectors]}")
        offset = invocation.number("offset", 0.0)
        if eps <= 0 or (offset and not vectors):
            raise PlanFault(f"{name} with eps {eps}, offset {offset} and {len(vectors)} vectors")
        return NormCall(centered, source, vectors, target, eps, offset, kind)


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
        """Raises PlanFault for an invocation that is no rope."""
        positions_are_input = len(invocation.inputs) == 2
        source, target = invocation.inputs[0] if positions_are_input else invocation.input, invocation.output
        kind = dtype_name(target)
        if source.shape != target.shape or source.dtype != target.dtype or compute_type(kind) not in ("f32", "f64"):
            raise PlanFault("rope has a floating input, and an output of its shape and type")
        if source.ndim < 2 or source.shape[-1] % 2:
            raise PlanFault(f"rope of shape {source.shape}: d_head is odd, or there are no tokens")
        tokens, half = source.shape[-2], source.shape[-1] // 2
        seq_lens = invocation.integers("seq_lens") if "seq_lens" in invocation.attributes else None
        precision = np.float64 if kind == "f64" else np.float32
        frequencies = find_frequencies(_read_attributes(invocation, half), half, precision)
        if positions_are_input != (seq_lens is None):
            raise PlanFault("rope has positions either as its second input or by seq_lens")
        positions = invocation.inputs[-1]
        if positions_are_input and (positions.shape != (tokens,) or positions.dtype.kind != "i"):
            raise PlanFault(f"rope of {tokens} tokens with positions {positions.dtype}{positions.shape}")
        if seq_lens is not None:
            positions = _token_positions(seq_lens, source, invocation.output_blocks)
        return RopeCall(source, target, frequencies, positions, positions_are_input)

    @property
    def status_message(self) -> str | None:
        """The error of an execution on a GPU, which says only that some position is wrong; None where none can be."""
        return "a position is negative; positions are 0 or more" if self.positions_are_input else None

    def require_positions(self) -> None:
        """Raises ValueFault for a negative position. The positions are read now."""
        if self.positions.min() < 0:
            raise ValueFault(f"a position is {int(self.positions.min())}; positions are 0 or more")


def _read_attributes(invocation: Invocation[Array], half: int) -> dict[str, Attribute]:
    """The attributes that say how fast pairs turn."""
    applied = Application("rope", (), dict(invocation.attributes))
    applied.allow(("theta", "scaling"), list(invocation.attributes))
    numbers = read_rotation(applied, half)
    applied.allow(list(numbers), ("seq_lens",))
    return numbers


def _token_positions(seq_lens: Sequence[int], source: Array, blocks: Sequence[Block]) -> Array:
    """The position of every token of the block in its own sequence."""
    (block,) = blocks
    lower, upper = block.lower[-2], block.upper[-2]
    ends = np.cumsum(np.array(seq_lens, np.int64))
    if upper - lower != source.shape[-2] or upper > ends[-1]:
        raise PlanFault(f"rope of tokens {lower} to {upper} of {ends[-1]}, with a block of shape {source.shape}")
    places = np.arange(lower, upper)
    starts = np.concatenate([[0], ends[:-1]])
    result: Array = places - starts[np.searchsorted(ends, places, side="right")]
    return result
