"""Dimensions that were to be dynamic and that torch makes constant, which it says in its log alone."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_LOGGER_NAME = "torch.fx.experimental.symbolic_shapes"
_CONSTANT_RECORD = "set_replacement %s"
"""How the record begins that a symbol is a number from now on; its first argument is the symbol."""
_NOT_OF_USER = sys.stdlib_module_names | {"torch", "einc", "sympy"}
"""Packages in whose lines a user wrote nothing."""


@dataclass(frozen=True, slots=True)
class ConstantDim:
    """An axis of an input that has one extent, and the line of Python that decided it, "" where it is not known."""

    tensor: str
    axis: int
    extent: int
    line: str

    def __str__(self) -> str:
        where = f" in {self.line}" if self.line else ""
        return (
            f"dimension {self.axis} of {self.tensor} was to be dynamic, and is always {self.extent}: "
            f"torch.export found{where} that it cannot be another; change what fixes it there, or leave this dimension "
            "out of dynamic_shapes (with Dim.DYNAMIC in place of Dim.AUTO, torch ends there and says why)"
        )


@contextmanager
def note_lines() -> Iterator[dict[str, str]]:
    """While a module is exported: the line of the user at which each symbol became a number."""
    lines: dict[str, str] = {}

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if str(record.msg).startswith(_CONSTANT_RECORD) and isinstance(record.args, tuple):
                lines.setdefault(str(record.args[0]), _name_user_line(_walk_back(sys._getframe(1))))

    log = logging.getLogger(_LOGGER_NAME)
    before = log.level, log.propagate, log.handlers
    log.handlers = [*log.handlers, Handler()]
    if not log.isEnabledFor(logging.INFO):  # nobody asked to read these records
        log.handlers, log.propagate = log.handlers[-1:], False
        log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        log.setLevel(before[0])
        log.propagate, log.handlers = before[1:]


def find_user_line(error: Exception) -> str:
    """The last line of the user on the way to an error, below that which called einc; "" where there is none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return _name_user_line(reversed(frames))


def _walk_back(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _name_user_line(frames: Iterable[tuple[FrameType, int]]) -> str:
    for frame, line in frames:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_OF_USER:
            return f"{frame.f_code.co_filename}:{line}"
    return ""


def list_constant_dims(exported: Any, lines: Mapping[str, str]) -> list[ConstantDim]:
    """Those of the inputs of an exported program: torch keeps a symbol for them, whose expression is a number."""
    constants = []
    for node in exported.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ()) if node.op == "placeholder" else ()
        for axis, extent in enumerate(shape):
            if not isinstance(extent, int) and str(extent).isdecimal():
                symbol = str(getattr(extent.node, "_expr", ""))
                constants.append(ConstantDim(node.name, axis, int(extent), lines.get(symbol, "")))
    return constants
