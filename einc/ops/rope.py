"""Rotary position embedding in the half-rotation convention: element i turns with element i + d_head / 2.

Pair i of the token at position n turns by the angle n * f_i, where f_i = theta ** (-2i / d_head), scaled if the call
says so. Frequencies and angles are rounded to f32, as in published implementations: for late positions this rounding
matters more than any other, and models were trained with exactly these angles.

Positions are an input, or else the places of the tokens in their packed sequences. All dimensions but the last are
shardable anywhere, because a kernel knows the bounds of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    format_value,
    read_lengths,
    read_number,
    read_word,
    reject_others,
    require_tensors,
)
from einc.ops.base import Attribute, Attributes, Operator
from einc.ops.derived import DerivedMappedOperator
from einc_runtime.plan.meaning.rows import ROPE_SCALINGS

CALLS = ("rope",)
EXTRAS = ("positions",)
THETA = 10000.0
"""The base of the paper that introduced rotary embeddings (Su et al., 2021)."""
SCALING_NAMES = tuple(ROPE_SCALINGS)


@dataclass(frozen=True, slots=True)
class Rope(DerivedMappedOperator):
    """A tensor [..., tokens, d_head] with its tokens turned by their positions: those of an input, or else those that
    follow from `seq_lens`, the lengths of the packed sequences. `rotation` are the attributes that say how fast."""

    family: ClassVar[str] = "rope"

    tensor: TensorDesc
    positions: TensorDesc | None
    rotation: tuple[tuple[str, Attribute], ...]
    seq_lens: tuple[int, ...]

    @property
    def attributes(self) -> Attributes:
        places: Attributes = {"seq_lens": self.seq_lens} if self.positions is None else {"extras": EXTRAS}
        return {**dict(self.rotation), **places}

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype
        from einc_runtime.rotary import find_frequencies

        positions = arrays[1] if self.positions is not None else np.concatenate(list(map(np.arange, self.seq_lens)))
        wide = find_accumulating_dtype(self.tensor.dtype)
        precision = np.float64 if self.tensor.dtype is DType.F64 else np.float32
        frequencies = find_frequencies(dict(self.rotation), self.tensor.shape[-1] // 2, precision)
        angles = (positions[:, None] * frequencies).astype(precision).astype(wide)
        first, second = np.split(arrays[0].astype(wide), 2, axis=-1)
        cosine, sine = np.cos(angles), np.sin(angles)
        turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return (turned.astype(arrays[0].dtype),)

    @property
    def costs_by_shape(self) -> bool:
        return True

    def flops(self, function: FunctionSpec) -> int:
        """Two products and a sum per element."""
        return 3 * function.inputs[0].size


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`rope(q, theta=500000.0, seq_lens=[8, 8])`, `rope(q, positions=p, scaling="linear", factor=4.0)`.

    If positions are given, `seq_lens` has no effect on them.
    """
    scaling = read_word(name, attributes, "scaling", SCALING_NAMES)
    unused = {key for keys in ROPE_SCALINGS.values() for key in keys} - set(ROPE_SCALINGS[scaling])
    for key in attributes:
        if key in unused:
            users = " or ".join(f'scaling="{s}"' for s in SCALING_NAMES if key in ROPE_SCALINGS[s])
            raise OperatorError(f"{name}: '{key}' goes with {users}, not with {scaling!r}", argument=key)
    reject_others(name, attributes, "theta", "seq_lens", "scaling", *ROPE_SCALINGS[scaling], "extras")
    return restore(require_tensors(name, arguments, 2 if attributes.get("extras") else 1), attributes)


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> Operator:
    """The rotation with these attributes; raises OperatorError if they are not those of a rotation."""
    extras = attributes.get("extras", ())
    if extras not in ((), EXTRAS) or len(inputs) != 1 + (extras == EXTRAS):
        raise OperatorError("rope has one input, and the positions where they are among its extras")
    tensor, positions = inputs[0], inputs[1] if extras else None
    if not tensor.dtype.is_float:
        raise OperatorError(f"rope does not take {tensor.dtype}", argument=0, hint='convert it: cast(x, "f32")')
    if tensor.rank < 2 or tensor.shape[-1] % 2:
        raise OperatorError(
            f"rope: expected tokens and an even d_head as the last two dimensions, found {tensor}", argument=0
        )
    tokens, dim = tensor.shape[-2], tensor.dims[-2]
    if positions is not None and (not positions.dtype.is_integer or positions.shape != (tokens,)):
        raise OperatorError(
            f"rope: the positions are {positions}, expected i64[{dim}={tokens}], one for each token",
            argument="positions",
        )
    lens = read_lengths("rope", attributes, "seq_lens", tokens, dim)
    rotation = _read_rotation(attributes, tensor.shape[-1] // 2)
    return Rope(tensor, positions, tuple(rotation.items()), lens if positions is None else ())


def _read_rotation(attributes: Attributes, pairs: int) -> Attributes:
    scaling = read_word("rope", attributes, "scaling", SCALING_NAMES)
    theta = read_number("rope", attributes, "theta", THETA, above=0)
    if scaling == "longrope":
        return {"theta": theta, "scaling": scaling, "factors": _read_factors(attributes, pairs)}
    numbers = {key: read_number("rope", attributes, key, above=0) for key in ROPE_SCALINGS[scaling]}
    if scaling == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        message = f"rope: 'low_freq_factor' is {low:g}, expected less than 'high_freq_factor', {high:g}"
        raise OperatorError(message, argument="low_freq_factor")
    return {"theta": theta, "scaling": scaling, **numbers}


def _read_factors(attributes: Attributes, pairs: int) -> tuple[float, ...]:
    """One for each pair."""
    factors = attributes.get("factors")
    if not isinstance(factors, tuple) or len(factors) != pairs:
        described = f"{len(factors)} of them" if isinstance(factors, tuple) else format_value(factors)
        raise OperatorError(
            f"rope: 'factors' must be a list of {pairs}, one a pair; found {described}", argument="factors"
        )
    return tuple(read_number("rope", {"factors": factor}, "factors", above=0) for factor in factors)


FAMILIES = {Rope.family: restore}
