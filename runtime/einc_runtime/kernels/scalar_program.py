"""Scalar programs as kernels compute them: f16 and bf16 in f32, every other type in itself."""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.plan.scalar_programs import ScalarProgram, TypedStep, infer_steps

GELU_TAIL = (
    0.693146400, 0.797897843, 0.318234574, 0.0365386913, -0.00508310585,
    0.000224117572, 7.93418991e-05, -1.73869207e-05, 1.17173838e-06,
)  # fmt: skip
"""-log of the normal distribution's upper tail as a polynomial p on [0, 16], fitted so that the error of u * exp(-p(u))
is at most 7e-9 (6e-8 in f32). Then gelu(x) = max(x, 0) - u * exp(-p(u)) for u = |x|, without cancellation."""


def read_steps(source: str, inputs: Sequence[str], output: str, indices: int = 0) -> tuple[TypedStep, ...]:
    """The steps of the program `source` over inputs of these element types, with the types in which they are computed.

    Raises PlanFault for what is no such program, and where `output` does not store what it results in.
    """
    steps = infer_steps(ScalarProgram.parse(source, len(inputs), indices), inputs, compute_type)
    if steps[-1].result_type != compute_type(output):
        raise PlanFault(f"a scalar program ends in {steps[-1].result_type}, but its result is stored as {output}")
    return steps
