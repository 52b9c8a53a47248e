"""Parts of tensors that an operator reads in place of the whole ones: boxes within them, one per operand."""

from __future__ import annotations

from collections.abc import Sequence

from einc.core.tensor import TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops.base import Attributes, Shape
from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_equations import IndexEquation, parse_index_equation, parse_windows

Windows = tuple[TensorType | None, ...]
"""Per operand the part of it that is read, None where all of it is; empty if all operands are read whole."""


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


def read_equation(attributes: Attributes, shapes: Sequence[Shape]) -> tuple[IndexEquation, Windows]:
    """The attributes `indices` and `windows` of an operator whose operands have these shapes. Raises OperatorError."""
    text, windows = attributes.get("indices"), attributes.get("windows")
    try:
        return parse_index_equation(str(text)), () if windows is None else parse_windows(str(windows), shapes)
    except PlanFault as fault:
        raise OperatorError(fault.message) from None
