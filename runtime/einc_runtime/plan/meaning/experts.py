"""The family that multiplies by experts: each slot of a token with the matrix of the expert that it picked.

All five indices may be cut anywhere. A function that has some of the experts puts out zeros for slots with others, and
one that has some of what is summed puts out sums of that. Such partial results are summed.
"""

from __future__ import annotations

from einc_runtime.plan.meaning.terms import (
    Application,
    IndexForm,
    OperatorMeaning,
    TensorForm,
    direct,
    unique_names,
)
from einc_runtime.plan.schema import FLOATS, INTEGERS

_TOKEN, _SLOT, _EXPERT, _ROW, _SUMMED = range(5)


def expert_matmul(applied: Application) -> OperatorMeaning:
    """Rows [token, summed] or [token, slot, summed], a weight [expert, row, summed], and picks [token, slot]."""
    applied.allow(())
    rows, weight, picks = applied.operands(3)
    applied.require(picks.rank == 2 and picks.dtype in INTEGERS, f"picks are {picks}")
    applied.require(weight.rank == 3 and weight.dtype in FLOATS, f"the weight is {weight}")
    of_rows = (_TOKEN, _SUMMED) if rows.rank == 2 else (_TOKEN, _SLOT, _SUMMED)
    names = unique_names((*picks.dims, *weight.dims))
    indices = tuple(map(IndexForm, names, (*picks.shape, *weight.shape)))
    fit = rows.dtype == weight.dtype and rows.shape == tuple(indices[index].extent for index in of_rows)
    applied.require(fit, f"of {rows} with {weight} by {picks}")
    dims = unique_names((*picks.dims, weight.dims[1]))
    return OperatorMeaning(
        "expert_matmul",
        {"experts": weight.shape[0]},
        (TensorForm(dims, (*picks.shape, weight.shape[1]), rows.dtype),),
        indices,
        (direct(of_rows), direct((_EXPERT, _ROW, _SUMMED)), direct((_TOKEN, _SLOT))),
        (direct((_TOKEN, _SLOT, _ROW)),),
    )
