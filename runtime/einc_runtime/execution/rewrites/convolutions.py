"""Operations that are convolutions."""

from __future__ import annotations

from einc_runtime.errors import PlanFault
from einc_runtime.plan.index_convolutions import Convolution, find_convolution
from einc_runtime.plan.index_programs import IndexProgram, read_index_program
from einc_runtime.plan.meaning.index import parse_shapes
from einc_runtime.plan.schema import Operation


def read_program(operation: Operation) -> IndexProgram:
    """The program of an operation with the kernel `index`. Raises PlanFault, LookupError, TypeError or ValueError where
    its attributes are none."""
    attributes = operation.kernel_attributes
    return read_index_program(lambda name, _: attributes[name], parse_shapes(str(attributes["shapes"])))


def read_convolution(operation: Operation) -> tuple[IndexProgram, Convolution] | None:
    """The program of a convolution; None for other operations, and for what its kernel will refuse."""
    if operation.kernel != "index":
        return None
    try:
        program = read_program(operation)
        convolution = find_convolution(program)
    except (PlanFault, LookupError, TypeError, ValueError):
        return None
    return None if convolution is None else (program, convolution)
