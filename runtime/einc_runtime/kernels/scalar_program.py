"""Scalar programs as kernels compute them: f16 and bf16 in f32, every other type in itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc_runtime.dtypes import compute_type
from einc_runtime.plan.scalar_programs import ScalarProgram, TypedStep, infer_steps

GELU_TAIL = (
    0.693146400, 0.797897843, 0.318234574, 0.0365386913, -0.00508310585,
    0.000224117572, 7.93418991e-05, -1.73869207e-05, 1.17173838e-06,
)  # fmt: skip
"""-log of the normal distribution's upper tail as a polynomial p on [0, 16], fitted so that the error of u * exp(-p(u))
is at most 7e-9 (6e-8 in f32). Then gelu(x) = max(x, 0) - u * exp(-p(u)) for u = |x|, without cancellation."""

ERF_NEAR = (
    1.12837922573, -0.376126378775, 0.112837821245, -0.0268653966487, 0.00522093800828,
    -0.000848272175062, 0.000112561778224, -9.63933598541e-06,
)  # fmt: skip
"""A polynomial p on [0, 1], with a relative error of 8e-8: erf(x) = x * p(x * x) where |x| < 1."""

ERF_TAIL = (GELU_TAIL[0] - math.log(2), *(c * 2 ** (k / 2) for k, c in enumerate(GELU_TAIL) if k))
"""-log of 1 - erf(x) as a polynomial of x on [0, 11], from that of the normal distribution."""


def read_steps(source: str, inputs: Sequence[str]) -> tuple[TypedStep, ...]:
    """The steps of the program `source` over inputs of these types, with the types in which they are computed."""
    return infer_steps(ScalarProgram.parse(source, len(inputs)), inputs, compute_type)
