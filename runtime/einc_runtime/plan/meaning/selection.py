"""Families that find the largest elements along a dimension: argmax and topk.

Every dimension may be cut anywhere. Cuts of the one that is searched make partial outputs, tuples of an index and a
value (or of lists of both), which are aggregated by the operation of the same name.
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
from einc_runtime.plan.schema import JointAggregation


def argmax(applied: Application) -> OperatorMeaning:
    """The index and the value of the largest element; the dimension `axis` is gone."""
    applied.allow(("axis",))
    tensor, axis = _searched(applied)
    dims, shape = tensor.dims[:axis] + tensor.dims[axis + 1 :], tensor.shape[:axis] + tensor.shape[axis + 1 :]
    results = (TensorForm(dims, shape, "i64"), TensorForm(dims, shape, tensor.dtype))
    return _find(applied, tensor, axis, results, lists=False)


def topk(applied: Application) -> OperatorMeaning:
    """The `count` largest elements and their indices, along a new last dimension `into` that is never cut."""
    applied.allow(("axis", "count", "into"))
    tensor, axis = _searched(applied)
    count = applied.value("count", int)
    applied.require(1 <= count <= tensor.shape[axis], f"{count} of {tensor.shape[axis]} elements")
    dims = unique_names((*tensor.dims[:axis], *tensor.dims[axis + 1 :], applied.value("into", str)))
    shape = (*tensor.shape[:axis], *tensor.shape[axis + 1 :], count)
    results = (TensorForm(dims, shape, tensor.dtype), TensorForm(dims, shape, "i64"))
    return _find(applied, tensor, axis, results, lists=True)


def _searched(applied: Application) -> tuple[TensorForm, int]:
    (tensor,) = applied.operands(1)
    applied.require(tensor.dtype != "bool", f"of {tensor}")
    return tensor, applied.axis(tensor)


def _find(
    applied: Application, tensor: TensorForm, axis: int, results: tuple[TensorForm, ...], *, lists: bool
) -> OperatorMeaning:
    rank = results[0].rank
    all_dims = tuple(range(rank))
    kept = (*direct([d for d in range(tensor.rank) if d != axis]), *([WHOLE] * lists))
    return OperatorMeaning(
        applied.family,
        {"axis": axis},
        results,
        indices_along(tensor),
        (direct(range(tensor.rank)),),
        (kept, kept),
        (applied.family,) * 2,
        (JointAggregation((0, 1), (all_dims, all_dims), all_dims[rank - lists :]),),
    )
