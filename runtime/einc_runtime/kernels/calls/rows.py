"""Calls of the kernels over rows: `softmax`, `rmsnorm` and `layernorm`, checked against their operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import Array, compute_type
from einc_runtime.errors import PlanFault
from einc_runtime.kernels.base import Invocation, dtype_name


@dataclass(frozen=True, slots=True)
class SoftmaxCall:
    """A softmax of rows along `axis`, computed in type `kind`."""

    source: Array
    target: Array
    axis: int
    kind: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> SoftmaxCall:
        invocation.allow("axis")
        source, target, axis = invocation.input, invocation.output, invocation.attribute("axis", int)
        kind = compute_type(dtype_name(target))
        if source.shape != target.shape or source.dtype != target.dtype or kind not in ("f32", "f64"):
            raise PlanFault("a softmax has one floating input and an output of its shape and type")
        if not -source.ndim <= axis < source.ndim:
            raise PlanFault(f"softmax over axis {axis} of a tensor of {source.ndim} dimensions")
        return SoftmaxCall(source, target, axis % source.ndim, kind)


@dataclass(frozen=True, slots=True)
class NormCall:
    """A norm of rows along the last axis, computed in type `kind`. `vectors` are a gain, if there is one, and behind it
    perhaps a bias of rows that are `centered`, as those of layernorm are; `offset` is added to the gain."""

    centered: bool
    source: Array
    vectors: Sequence[Array]
    target: Array
    eps: float
    offset: float
    kind: str

    @staticmethod
    def parse(invocation: Invocation[Array]) -> NormCall:
        invocation.allow("eps", "offset")
        name, target, eps = invocation.name, invocation.output, invocation.attribute("eps", float)
        centered = name == "layernorm"
        source, *vectors = invocation.operands(min(max(len(invocation.inputs), 1), 3 if centered else 2))
        kind = compute_type(dtype_name(target))
        if kind not in ("f32", "f64") or any(x.dtype != target.dtype for x in invocation.inputs):
            raise PlanFault(f"{name} has floating inputs of one type, and an output of that type")
        if source.shape != target.shape or source.ndim == 0 or any(v.shape != source.shape[-1:] for v in vectors):
            raise PlanFault(f"{name} of {source.shape} into {target.shape}, with {[v.shape for v in vectors]}")
        if not 0 < eps < math.inf:
            raise PlanFault(f"{name} with eps {eps}")
        offset = invocation.attribute("offset", float) if "offset" in invocation.attributes else 0.0
        if not math.isfinite(offset) or (offset and not vectors):
            raise PlanFault(f"{name} with offset {offset} and {len(vectors)} vectors")
        return NormCall(centered, source, vectors, target, eps, offset, kind)
