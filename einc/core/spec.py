"""Function specifications and join-agg specs (paper, Definitions 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einc.core.tensor import TensorType
from einc.core.tiling import tiling_fault, tiling_of


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The blocks that one concrete operator reads and writes, one per input and output."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class JoinAggSpec:
    """The set of function specifications that together implement an abstract operator.

    They stand in the lexicographic order of the intervals that asked for them; each runs on a site of its own.
    """

    functions: tuple[FunctionSpec, ...]


def spec_fault(spec: JoinAggSpec, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> str | None:
    """Why `spec` is no join-agg spec over these whole types, in words, or None where it is one.

    Checks that every block is a projection of its tensor, and the tiling condition of every output.
    """
    for function in spec.functions:
        if len(function.inputs) != len(inputs) or len(function.outputs) != len(outputs):
            return f"a function specification has {len(function.inputs)} inputs, {len(function.outputs)} outputs"
        for k, (block, whole) in enumerate(zip(function.inputs, inputs, strict=True)):
            if not whole.contains(block):
                return f"input {k}: block {block} is no projection of {whole}"
    for j, whole in enumerate(outputs):
        fault = tiling_fault(whole, tiling_of(function.outputs[j] for function in spec.functions))
        if fault is not None:
            return f"output {j}: {fault}"
    return None
