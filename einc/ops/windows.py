"""Parts of tensors that an operator reads in place of the whole ones: boxes within them, one per operand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError

Windows = tuple[TensorType | None, ...]
"""Per operand the part of it that is read, None where all of it is; empty if all operands are read whole."""

_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.A)


def list_boxes(operands: Sequence[TensorDesc], windows: Windows) -> tuple[TensorType, ...]:
    """The part of every operand that is read."""
    if not windows:
        return tuple(desc.type for desc in operands)
    return tuple(desc.type if box is None else box for desc, box in zip(operands, windows, strict=True))


def normalize_windows(operands: Sequence[TensorDesc], boxes: Sequence[TensorType]) -> Windows:
    """The windows that stand for these parts."""
    windows = tuple(None if box == desc.type else box for desc, box in zip(operands, boxes, strict=True))
    return () if all(box is None for box in windows) else windows


def compose_box(outer: TensorType, inner: TensorType) -> TensorType:
    """The part `inner` of the part `outer` of a tensor, as a part of the tensor."""
    return TensorType(
        tuple(start + lo for start, lo in zip(outer.lower, inner.lower, strict=True)),
        tuple(start + up for start, up in zip(outer.lower, inner.upper, strict=True)),
    )


def format_windows(windows: Windows) -> str:
    """Per operand `lo:up` for each dimension, or `-` for a whole one: `0:8 4:8, -`."""
    return ", ".join("-" if box is None else " ".join(_format_ranges(box)) for box in windows)


def _format_ranges(box: TensorType) -> list[str]:
    return [f"{lo}:{up}" for lo, up in zip(box.lower, box.upper, strict=True)]


def parse_windows(text: object, operands: Sequence[TensorDesc]) -> Windows:
    """The windows that `format_windows` wrote; None stands for none. Raises OperatorError if they do not fit."""
    if text is None:
        return ()
    parts = text.split(", ") if isinstance(text, str) else []
    if len(parts) != len(operands):
        raise OperatorError(f"an equation of {len(operands)} operands has a window, or -, for each")
    return tuple(None if part == "-" else _parse_box(part, desc) for part, desc in zip(parts, operands, strict=True))


def _parse_box(text: str, desc: TensorDesc) -> TensorType:
    found = [_RANGE.fullmatch(bounds) for bounds in text.split(" ")]
    ranges = [(int(match[1]), int(match[2])) for match in found if match is not None]
    if len(ranges) == len(found) == desc.rank:
        box = TensorType(tuple(lo for lo, _ in ranges), tuple(up for _, up in ranges))
        if all(lo < up <= extent for (lo, up), extent in zip(ranges, desc.shape, strict=True)):
            return box
    raise OperatorError(f"window {text[:80]!r} is no part of {desc}")
