"""The family topk, which finds the largest elements along a dimension.

Every dimension may be cut anywhere. Cuts of the one that is searched make partial outputs, pairs of lists of values and
of indices, which are aggregated by the operation of the same name.
"""

from __future__ import annotations

from einc_runtime.plan.meaning.terms import (
    WHOLE,
    Application,
    OperatorMeaning,
    TensorForm,
    direct,
    indices_along,
    unique_names,
)
from einc_runtime.plan.scalar_functions import NUMBER_TYPES
from einc_runtime.plan.schema import JointAggregation


def topk(applied: Application) -> OperatorMeaning:
    """The `count` largest elements and their indices, along a new last dimension `into` that is never cut."""
    applied.allow(("axis", "count", "into"))
    (tensor,) = applied.operands(1)
    applied.require(tensor.dtype in NUMBER_TYPES, f"of {tensor}")
    axis, count = applied.axis(tensor), applied.value("count", int)
    applied.require(1 <= count <= tensor.shape[axis], f"{count} of {tensor.shape[axis]} elements")
    dims = unique_names((*tensor.dims[:axis], *tensor.dims[axis + 1 :], applied.value("into", str)))
    shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :], count)
    kept = (*direct([d for d in range(tensor.rank) if d != axis]), WHOLE)
    all_dims = tuple(range(tensor.rank))
    return OperatorMeaning(
        applied.family,
        {"axis": axis},
        (TensorForm(dims, shape, tensor.dtype), TensorForm(dims, shape, "i64")),
        indices_along(tensor),
        (direct(range(tensor.rank)),),
        (kept, kept),
        (applied.family,) * 2,
        (JointAggregation((0, 1), (all_dims, all_dims), all_dims[-1:]),),
    )
