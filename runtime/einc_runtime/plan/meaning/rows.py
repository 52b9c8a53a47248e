"""Families that combine the elements of rows: `rows`, which are softmax and norms, rotary positions, and `topk`.

Of `topk`, every dimension may be cut anywhere. Cuts of the one that is searched make partial outputs, pairs of lists of
values and of indices, which are aggregated by the operation of the same name.
"""

from __future__ import annotations

import math

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
from einc_runtime.plan.schema import FLOATS, INTEGERS, Attribute, JointAggregation

ROPE_SCALINGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_length"),
    "longrope": ("factors",),
}
"""How frequencies of `rope` may be scaled, and the attributes of each way: numbers, but for the list `factors`."""

_VECTORS = {"softmax": 0, "rmsnorm": 1, "layernorm": 2}
"""How many vectors there may be: a gain, and a bias behind it."""


def rows(applied: Application) -> OperatorMeaning:
    """Softmax along `axis`, and norms along the last dimension, which stays whole as the vectors do that have it alone;
    every other dimension may be cut anywhere."""
    applied.allow(("kind", "axis"), list(applied.attributes))
    kind = applied.value("kind", str)
    applied.require(kind in _VECTORS, f"there is no kind '{kind[:40]}'")
    tensor, *vectors = applied.operands(min(max(len(applied.inputs), 1), 1 + _VECTORS[kind]))
    applied.require(bool(vectors) or "offset" not in applied.attributes, "it has an offset and no gain")
    axis = applied.axis(tensor)
    fit = tensor.dtype in FLOATS and (kind == "softmax" or axis == tensor.rank - 1)
    fit = fit and all(vector.shape == tensor.shape[-1:] and vector.dtype == tensor.dtype for vector in vectors)
    applied.require(fit, f"of {', '.join(map(str, applied.inputs))} along dimension {axis}")
    attributes: dict[str, Attribute] = {"axis": axis}
    if kind == "softmax":
        applied.allow(("kind", "axis"))
    else:
        applied.allow(("kind", "axis", "eps"), ("offset",))
        attributes = {"eps": applied.number("eps")}
        if "offset" in applied.attributes:
            attributes["offset"] = applied.number("offset", above=-math.inf)
    indices = indices_along(tensor)
    axes = (*direct(range(axis)), WHOLE, *direct(range(axis, tensor.rank - 1)))
    inputs = (axes, *((WHOLE,) for _ in vectors))
    return OperatorMeaning(kind, attributes, (tensor,), indices[:axis] + indices[axis + 1 :], inputs, (axes,))


def rope(applied: Application) -> OperatorMeaning:
    """Pairs of the last dimension turn by the positions of the tokens, which are an input or follow from `seq_lens`."""
    has_positions = "extras" in applied.attributes
    applied.allow(("theta", "scaling", "extras" if has_positions else "seq_lens"), list(applied.attributes))
    tensor, *positions = applied.operands(1 + has_positions)
    applied.require(tensor.dtype in FLOATS and tensor.rank >= 2 and tensor.shape[-1] % 2 == 0, f"of {tensor}")
    attributes = read_rotation(applied, tensor.shape[-1] // 2)
    applied.allow((*attributes, "extras" if has_positions else "seq_lens"))
    if has_positions:
        vector = positions[0]
        applied.require(applied.items("extras", str) == ("positions",), "extras that are not the positions")
        applied.require(vector.dtype in INTEGERS and vector.shape == tensor.shape[-2:-1], f"at {vector}")
    else:
        attributes["seq_lens"] = list(applied.lengths("seq_lens", tensor.shape[-2]))
    rank = tensor.rank
    axes = (*direct(range(rank - 1)), WHOLE)
    tokens = (direct((rank - 2,)),) * has_positions
    return OperatorMeaning("rope", attributes, (tensor,), indices_along(tensor)[:-1], (axes, *tokens), (axes,))


def read_rotation(applied: Application, pairs: int) -> dict[str, Attribute]:
    """The attributes that say how fast so many pairs turn."""
    scaling = applied.value("scaling", str)
    applied.require(scaling in ROPE_SCALINGS, f"there is no scaling '{scaling[:40]}'")
    applied.allow(("theta", "scaling", *ROPE_SCALINGS[scaling]), list(applied.attributes))
    attributes: dict[str, Attribute] = {"theta": applied.number("theta"), "scaling": scaling}
    if scaling == "longrope":
        factors = applied.items("factors", float)
        fit = len(factors) == pairs and all(0 < factor < math.inf for factor in factors)
        applied.require(fit, f"the factors are not {pairs} numbers above 0")
        return {**attributes, "factors": list(factors)}
    attributes.update((name, applied.number(name)) for name in ROPE_SCALINGS[scaling])
    if scaling == "llama3":
        low, high = applied.number("low_freq_factor"), applied.number("high_freq_factor")
        applied.require(low < high, f"low_freq_factor {low} and high_freq_factor {high}")
    return attributes


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
