"""One function specification on the runtime's kernel, for the definition oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorType
from einc.ops.base import Operator
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.registry import prepare
from einc_runtime.plan.schema import Block
from tests.support.definition_oracle import Array


def run_kernel(
    operator: Operator, function: FunctionSpec, blocks: Sequence[Array], repetitions: int = 1
) -> Sequence[Array]:
    """The outputs of the runtime's kernel, which reads strided views and writes into arrays that hold garbage.

    The kernel is prepared and bound on zeros. The data follows, so that the second run must read it.
    """
    call = operator.kernel
    inputs = [_roomy(block) for block in blocks]
    outputs = [
        np.full(block.shape, 77).astype(desc.dtype.numpy())
        for block, desc in zip(function.outputs, operator.outputs, strict=True)
    ]
    kernel = prepare(
        Invocation(
            call.name,
            {key: list(value) if isinstance(value, tuple) else value for key, value in call.attributes},
            inputs,
            outputs,
            list(map(_block, function.inputs)),
            list(map(_block, function.outputs)),
            repetitions,
        ),
    )
    run = kernel.bind(np.full(kernel.scratch, 255, np.uint8))
    with np.errstate(all="ignore"):  # as executors run kernels
        run()
        for view, block in zip(inputs, blocks, strict=True):
            view[...] = block
        run()
    return outputs


def _roomy(block: Array) -> Array:
    """Zeros of its shape that are no dense array: in every dimension there is one position more."""
    return np.zeros([extent + 1 for extent in block.shape], block.dtype)[(*map(slice, block.shape), ...)]


def _block(block: TensorType) -> Block:
    return Block(block.lower, block.upper)
