"""The kernel `custom` on CPUs: the function of a Python package, over arrays of numpy."""

from __future__ import annotations

import numpy as np

from einc_runtime.dtypes import Array, compute_type, storage_dtype
from einc_runtime.errors import KernelFault
from einc_runtime.kernels.base import Invocation, Kernel, Run, dtype_name, store
from einc_runtime.kernels.calls.custom import CustomCall


def build_custom(invocation: Invocation[Array]) -> Kernel:
    """The function sees f16 and bf16 as f32; each of its results is rounded once. It cannot write to operands."""
    call = CustomCall.parse(invocation)

    def bind(memory: Array) -> Run:
        def run() -> None:
            results = call.operator.run(call.name, [_widen(view) for view in call.inputs], call.settings)
            for view, result in zip(call.outputs, results, strict=True):
                array = np.asarray(result)
                if array.shape != view.shape:
                    message = f"the operator '{call.name}' returned an array {array.shape}, expected {view.shape}"
                    raise KernelFault(message)
                store(array, view)

        return run

    return Kernel(bind, 0, 4.0 * sum(view.size for view in (*call.inputs, *call.outputs)))


def _widen(view: Array) -> Array:
    kind = storage_dtype(compute_type(dtype_name(view)))
    if view.dtype != kind:
        return view.astype(kind)
    guarded = view.view()
    guarded.flags.writeable = False
    return guarded
