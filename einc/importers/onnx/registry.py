"""Which operators are known: each kind has a module with a table of its own."""

from __future__ import annotations

from einc.importers.onnx import (
    elementwise_operators,
    moving_operators,
    product_operators,
    recurrent_operators,
    reducing_operators,
    resizing_operators,
    sampling_operators,
    signal_operators,
)
from einc.importers.onnx.nodes import Convert

CONVERSIONS: dict[str, Convert] = {
    **elementwise_operators.OPERATORS,
    **moving_operators.OPERATORS,
    **product_operators.OPERATORS,
    **recurrent_operators.OPERATORS,
    **reducing_operators.OPERATORS,
    **resizing_operators.OPERATORS,
    **sampling_operators.OPERATORS,
    **signal_operators.OPERATORS,
}
"""What converts an operator of the domain `ai.onnx`, by its name."""
