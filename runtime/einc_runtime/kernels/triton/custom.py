"""The kernel `custom` on GPUs: a Triton kernel that a Python package brings along."""

from __future__ import annotations

from einc_runtime.custom import DOCUMENTATION, TritonOperand
from einc_runtime.dtypes import Array
from einc_runtime.errors import MissingFault
from einc_runtime.kernels.base import Invocation, address, dtype_name
from einc_runtime.kernels.calls.custom import CustomCall
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.source import make_launch


def build_custom(invocation: Invocation[Array]) -> LaunchSequence:
    """One launch. Raises MissingFault where the operator has no kernel for GPUs."""
    call = CustomCall.parse(invocation)
    if not call.operator.launch:
        hint = f"give it one by the decorator @{call.name}.triton ({DOCUMENTATION}), or run the plan on CPUs"
        raise MissingFault(f"the operator '{call.name}' has no kernel for GPUs", hint=hint)
    arrays = (*call.inputs, *call.outputs)
    operands = [
        TritonOperand(view.shape, tuple(stride // view.itemsize for stride in view.strides), dtype_name(view))
        for view in arrays
    ]
    program = call.operator.launch[0](*operands, **call.settings)
    text = program.write(call.name, len(arrays))
    pointers = [(address(view), dtype_name(view)) for view in arrays]
    return LaunchSequence((make_launch(call.name, text, pointers, program.grid, program.warps, program.stages),))
