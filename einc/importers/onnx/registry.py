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

ONNX_OPERATORS: dict[str, Convert] = {
    **elementwise_operators.ELEMENTWISE_OPERATORS,
    **moving_operators.MOVING_OPERATORS,
    **product_operators.PRODUCT_OPERATORS,
    **recurrent_operators.RECURRENT_OPERATORS,
    **reducing_operators.REDUCING_OPERATORS,
    **resizing_operators.RESIZING_OPERATORS,
    **sampling_operators.SAMPLING_OPERATORS,
    **signal_operators.SIGNAL_OPERATORS,
}
"""What converts an operator of the domain `ai.onnx`, by its name."""
