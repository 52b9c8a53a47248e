"""Where a block lies in a numpy array."""

from __future__ import annotations

from collections.abc import Sequence

from einc.core.tensor import TensorType


def slices(block: TensorType, origin: Sequence[int] | None = None) -> tuple[slice, ...]:
    """Its slices of an array whose first element stands at `origin` (default: zero)."""
    base = (0,) * block.rank if origin is None else origin
    return tuple(slice(lo - o, up - o) for lo, up, o in zip(block.lower, block.upper, base, strict=True))
