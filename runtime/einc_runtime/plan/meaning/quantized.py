"""Families that read quantized weights: `dequantize`, which widens one, and products with one.

A weight of [rows..., k] is stored as integers or floats of 8 bits, or as pairs of 4 bits in bytes, in one of the forms
of `plan/element_types.py`. It has a scale for each `group` of neighbours along k, or else for each channel: for each
position of the first dimensions, as many as scales have. It has as many zero points, or a factor for each position of
the first dimensions, as many as factors have, or neither. k is cut between groups; without them anywhere between bytes,
but rows of pairs between runs of 32 where 32 divides them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from einc_runtime.plan.element_types import ELEMENT_FORMATS, DTypeName, find_stored_form
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.meaning.equations import place_names, read_windows
from einc_runtime.plan.meaning.terms import (
    INTEGERS,
    Application,
    Axes,
    BlockAxis,
    IndexForm,
    OperatorMeaning,
    TensorForm,
    direct,
    unique_names,
)
from einc_runtime.plan.schema import FLOATS, Attribute

RUN = 32
NARROW_FLOATS_OF: tuple[DTypeName, ...] = ("f16", "bf16", "f32")
"""Types of weights that are stored as floats of 8 or 4 bits: what is computed in f32."""
MAX_SUMMED = 1 << 17
"""Products of a rounded element and a value of 8 bits, each at most 127 * 128, whose sum has 32 bits."""


def dequantize(applied: Application) -> OperatorMeaning:
    """The weight: (value - zero) * scale."""
    applied.allow(("group",), ("inputs", "dtype"))
    group = applied.value("group", int)
    named = applied.value("dtype", str) if "dtype" in applied.attributes else None
    applied.require(named is None or named in NARROW_FLOATS_OF, f"of type {named}")
    dtype = next((known for known in NARROW_FLOATS_OF if known == named), None)
    weight, unit = _read_weight(applied, applied.inputs, group, dtype)
    places = direct(range(weight.rank))
    names = unique_names(weight.dims)
    return OperatorMeaning(
        "dequantize",
        {"group": group},
        (weight,),
        tuple(
            _index(name, extent, unit if n == weight.rank - 1 else 1)
            for n, (name, extent) in enumerate(zip(names, weight.shape, strict=True))
        ),
        _place_operands(applied.inputs, group, weight, places),
        (places,),
    )


def quantized_product(applied: Application) -> OperatorMeaning:
    """`indices` are those of a tensor, of the weight and of the result. Summed are the last indices of the weight."""
    applied.allow(("indices", "dims", "group", "factor"), ("windows",))
    applied.require(len(applied.inputs) > 0, "it has no inputs")
    tensor, *stored = applied.inputs
    return _multiply(applied, tensor, tuple(stored), applied.value("group", int))


def quantized_experts(applied: Application) -> OperatorMeaning:
    """Sums over k of x[t, s, k] * weight[picks[t, s], n, k], where x may lack s: an index program that multiplies with
    picked experts (`IndexProgram.is_expert_product`), of a quantized weight. Inputs are x, what is stored of the
    weight, and the picks. Of some experts alone, the sums of the others are 0."""
    applied.allow(("group", "dims"))
    applied.require(len(applied.inputs) >= 4, f"it has 4 inputs at least, found {len(applied.inputs)}")
    tensor, *stored, picks = applied.inputs
    group, dims = applied.value("group", int), applied.items("dims", str)
    weight, unit = _read_weight(applied, tuple(stored), group, tensor.dtype if _is_float(stored[0]) else None)
    fits = weight.rank == 3 and picks.rank == 2 and picks.dtype in INTEGERS and tensor.dtype == weight.dtype
    applied.require(fits and len(dims) == 3, f"of {tensor} and {weight}, picked by {picks}")
    experts, columns, depth = weight.shape
    rows = {2: (0, 3), 3: (0, 1, 3)}.get(tensor.rank, ())
    extents = (*picks.shape, columns, depth, experts)
    applied.require(tensor.shape == tuple(extents[position] for position in rows), f"of {tensor} and {weight}")
    names = unique_names((*picks.dims, *weight.dims[1:], weight.dims[0]))
    return OperatorMeaning(
        "expert_matmul",
        {"experts": experts, "group": group},
        (TensorForm(dims, extents[:3], tensor.dtype),),
        tuple(_index(*index, unit if n == 3 else 1) for n, index in enumerate(zip(names, extents, strict=True))),
        (direct(rows), *_place_operands(tuple(stored), group, weight, direct((4, 2, 3))), direct((0, 1))),
        (direct((0, 1, 2)),),
    )


def rounded_product(applied: Application) -> OperatorMeaning:
    """The same with a tensor that is rounded to integers of 8 bits, or to floats of 8 or 4 bits, in groups as the
    weight's, or in rows, where scales of the weight have no index that is summed. Of rows, and of forms with a factor,
    the second input has the largest magnitudes: it has the tensor's indices that are not summed."""
    applied.allow(("indices", "dims", "factor"), ("windows", "group"))
    applied.require(len(applied.inputs) >= 3, f"it has 3 inputs at least, found {len(applied.inputs)}")
    tensor, *stored = applied.inputs
    largest = stored.pop(0) if stored[0].dtype in FLOATS else None
    group = applied.value("group", int) if "group" in applied.attributes else 0
    applied.require(group > 0 or "group" not in applied.attributes, f"groups of {group}")
    plain = _multiply(applied, tensor, tuple(stored), group)
    form = find_stored_form(stored[0].dtype, stored[1].dtype)
    assert form is not None
    suits = form.rounds_inputs(group) and (form.is_float or len(stored) == 2)
    applied.require(suits and form.needs_largest(group) == (largest is not None), f"of {', '.join(map(str, stored))}")
    (result,), (axes, *weight) = plain.outputs, plain.inputs
    kept = {axis.index for axis in result}
    if not group:
        applied.require(
            {axis.index for axis in weight[1]} <= kept, f"of scales {stored[1]}, of which a dimension is summed"
        )
    summed = math.prod(index.extent for n, index in enumerate(plain.indices) if n not in kept)
    fits = form.is_float or summed <= MAX_SUMMED
    applied.require(fits, f"{summed} products are summed; at most {MAX_SUMMED} fit into 32 bits")
    attributes = dict(plain.attributes)
    if not group:
        del attributes["group"]
    kept_dims = [(dim, axis.index) for dim, axis in zip(tensor.dims, axes, strict=True) if axis.index in kept]
    beside: tuple[Axes, ...] = ()
    if largest is not None:
        extents = tuple(plain.indices[index].extent for _, index in kept_dims if index is not None)
        rows = TensorForm(tuple(dim for dim, _ in kept_dims), extents, tensor.dtype)
        applied.require(largest == rows, f"of {largest}, where rows are {rows}")
        beside = (tuple(BlockAxis(index) for _, index in kept_dims),)
    return replace(plain, kernel="rounded_contract", attributes=attributes, inputs=(axes, *beside, *weight))


def _multiply(applied: Application, tensor: TensorForm, stored: tuple[TensorForm, ...], group: int) -> OperatorMeaning:
    is_float = bool(stored) and _is_float(stored[0])
    weight, unit = _read_weight(applied, stored, group, tensor.dtype if is_float else None)
    applied.require(tensor.dtype == weight.dtype, f"of {tensor} and {weight}")
    equation, dims = parse_index_equation(applied.value("indices", str)), applied.items("dims", str)
    labels, result = equation.inputs, equation.output
    windows = read_windows(applied, (tensor, weight))
    extents = equation.bind([window.shape for window in windows])
    applied.require(all(len(set(names)) == len(names) for names in labels), "an index occurs twice in an operand")
    applied.require(len(result) == len(dims) and set(result) <= set(extents), "the result does not fit")
    summed = [name for name in labels[1] if name not in result]
    inner = bool(summed) and set(summed) == set(labels[0]) - set(result)
    inner = inner and list(labels[1][-len(summed) :]) == summed
    applied.require(inner, "the summed indices are not those that both have, the last ones of the weight")
    applied.require(
        all(bound[-1] % unit == 0 for bound in (windows[1].lower, windows[1].upper)), "a window cuts a group"
    )
    factor = applied.value("factor", float)
    applied.require(math.isfinite(factor), f"the factor is {factor}")
    places = {name: position for position, name in enumerate(extents)}
    axes = [place_names(names, window, places) for names, window in zip(labels, windows, strict=True)]
    attributes: dict[str, Attribute] = {"equation": str(equation), "group": group}
    if factor != 1:
        attributes["scale"] = factor
    return OperatorMeaning(
        "quantized_contract",
        attributes,
        (TensorForm(dims, tuple(extents[name] for name in result), tensor.dtype),),
        tuple(_index(name, extent, unit if name == labels[1][-1] else 1) for name, extent in extents.items()),
        (axes[0], *_place_operands(stored, group, weight, axes[1])),
        (direct([places[name] for name in result]),),
    )


def _is_float(values: TensorForm) -> bool:
    return ELEMENT_FORMATS[values.dtype].bits is not None


def _read_weight(
    applied: Application, stored: tuple[TensorForm, ...], group: int, dtype: DTypeName | None
) -> tuple[TensorForm, int]:
    """The weight that is stored in these tensors, and the unit in which its last dimension may be cut.

    Floats have no zero points and stand for a weight of type `dtype`; integers have scales of the weight's type, and
    `dtype` is None.
    """
    applied.require(2 <= len(stored) <= 3 and stored[0].rank > 0 and group >= 0, "there are no values and scales")
    values, scales, *more = stored
    form = find_stored_form(values.dtype, scales.dtype)
    operands_text = f"of {values} with {', '.join(map(str, stored[1:]))}"
    applied.require(form is not None and [each.dtype for each in more] in form.list_more(), operands_text)
    assert form is not None
    applied.require(dtype in NARROW_FLOATS_OF if form.is_float else dtype is None, f"of {values} with {scales}")
    packing = ELEMENT_FORMATS[form.values].packing
    *rows, last = values.shape
    extent = last * packing
    fits = group == form.group if form.group else group % RUN == 0
    applied.require(fits and (group == 0 or extent % group == 0), f"groups of {group} in {extent} elements")
    each = (*rows, extent // group) if group else tuple(rows[: scales.rank])
    dims = values.dims[: len(each)]
    fit = (scales.dims, scales.shape) == (dims, each)
    for beside in more:
        count = min(beside.rank, len(rows)) if form.has_factor else len(each)
        fit = fit and (beside.dims, beside.shape) == (dims[:count], each[:count])
    applied.require(fit, operands_text)
    unit = group or (packing if packing == 1 or extent % RUN else RUN)
    return TensorForm(values.dims, (*rows, extent), dtype or scales.dtype), unit


def _index(name: str, extent: int, unit: int) -> IndexForm:
    return IndexForm(name, extent, None if unit == 1 else tuple(range(unit, extent, unit)))


def _place_operands(
    stored: tuple[TensorForm, ...], group: int, weight: TensorForm, axes: tuple[BlockAxis, ...]
) -> tuple[Axes, ...]:
    """The blocks of the operands for a block of the weight: as many values, or groups, as there are in it."""
    *rows, last = axes
    packing = weight.shape[-1] // max(1, stored[0].shape[-1])
    values = (*rows, _divided(last, packing))
    each = (*rows, _divided(last, group)) if group else tuple(rows[: stored[1].rank])
    return (values, each, *(each[: form.rank] for form in stored[2:]))


def _divided(axis: BlockAxis, divisor: int) -> BlockAxis:
    """A dimension of which each position stands for `divisor` positions of the axis."""

    def bounds(lower: int, upper: int) -> tuple[int, int]:
        start, stop = axis.bounds(lower, upper)
        return start // divisor, stop // divisor

    return BlockAxis(axis.index, bounds)
