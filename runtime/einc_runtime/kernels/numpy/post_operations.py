"""What oneDNN does to each element of a result before it stores it: a chain of functions, with further operands.

Its `relu` of NaN is 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.numpy.onednn import OnednnObject, require_library
from einc_runtime.plan.scalar_programs import EarlierStep, Operand, ScalarInput, ScalarLiteral

ADD_TARGET = "add_target"
_RELU = 0x20  # this number and the next ones are those of dnnl_types.h
_OF_TWO = {"add": 0x1FFF0, "mul": 0x1FFF1, "sub": 0x1FFF5}
_IN_ANY_ORDER = ("add", "mul")
_OPERATION, _SECOND_OPERAND = 1 << 15, 2
_UNDEFINED_TYPE = 0  # that of the result


@dataclass(frozen=True, slots=True)
class PostOperation:
    """A function of an element, or of that and the element of an operand; an extent of 1 is broadcast.

    `ADD_TARGET` adds what lies where the result is stored.
    """

    function: str
    operand: Array | None = None

    def onto(self, target: Array) -> PostOperation:
        """The same for a result that is stored there."""
        operand = self.operand
        if operand is None or self.function != "add" or address(operand) != address(target):
            return self
        return PostOperation(ADD_TARGET) if operand.strides == target.strides else self


def find_post_operations(call: MapCall, operand: int) -> list[PostOperation] | None:
    """The functions that make of an operand's element what the map stores; None where it is no such chain in f32."""
    if set(call.kinds) != {"f32"}:
        return None
    value: Operand = ScalarInput(operand)
    operations: list[PostOperation] = []
    for number, step in enumerate(call.steps):
        further = [operand_of_step for operand_of_step in step.operands if operand_of_step != value]
        if len(further) != len(step.operands) - 1:
            return None
        if step.function == "relu":
            operations.append(PostOperation("relu"))
        elif step.function in _OF_TWO and (step.operands[0] == value or step.function in _IN_ANY_ORDER):
            second = _find_array(call, operand, further[0])
            if second is None:
                return None
            operations.append(PostOperation(step.function, second))
        else:
            return None
        value = EarlierStep(number)
    return operations


def _find_array(call: MapCall, operand: int, second: Operand) -> Array | None:
    if isinstance(second, ScalarLiteral):
        return np.full((1,) * len(call.indices), second.value, np.float32)
    return call.views[second.position] if isinstance(second, ScalarInput) and second.position != operand else None


def make_post_operations(operations: Sequence[tuple[str, OnednnObject | None]]) -> OnednnObject:
    """The functions, with the descriptors of their operands, as oneDNN has them. Raises OnednnError."""
    library, zero = require_library(), ctypes.c_float(0)
    chain = library.make("post_ops")
    for function, operand in operations:
        if function == ADD_TARGET:
            library.call("post_ops_append_sum", chain, ctypes.c_float(1), 0, _UNDEFINED_TYPE)
        elif operand is None:
            library.call("post_ops_append_eltwise", chain, _RELU, zero, zero)
        else:
            library.call("post_ops_append_binary", chain, _OF_TWO[function], operand)
    return chain


def number_operand(position: int) -> int:
    """Which argument of a primitive the operand of a function is."""
    return _OPERATION * (position + 1) | _SECOND_OPERAND
