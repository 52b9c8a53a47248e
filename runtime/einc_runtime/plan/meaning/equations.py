"""Index equations: a scalar program over joined tensors, aggregated over the indices that the result lacks.

Every index may be cut anywhere. The intervals of an index of the result tile the output; those of any other index make
partial outputs. A product that is summed is the kernel `contract`, everything else is `map` or `reduce`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.index_equations import parse_index_equation, parse_windows
from einc_runtime.plan.meaning.terms import (
    Application,
    BlockAxis,
    IndexForm,
    OperatorMeaning,
    TensorForm,
    direct,
    shifted,
)
from einc_runtime.plan.scalar_functions import NUMBER_TYPES
from einc_runtime.plan.scalar_programs import ScalarProgram, infer_steps
from einc_runtime.plan.schema import FLOATS, NARROW_FLOATS, Attribute, Block
from einc_runtime.plan.states import IN_PLACE

AGGREGATIONS = ("sum", "max", "min", "prod")


def equation(applied: Application) -> OperatorMeaning:
    """`indices` names the index of every dimension of every input and of the result: "i j, j k -> i k"."""
    applied.allow(("indices", "dims", "program", "aggregation"), ("windows", IN_PLACE))
    equation, dims = parse_index_equation(applied.value("indices", str)), applied.items("dims", str)
    labels, result = equation.inputs, equation.output
    windows = read_windows(applied, applied.inputs)
    extents = equation.bind([window.shape for window in windows])
    applied.require(set(result) <= set(extents) and len(dims) == len(result), "the result does not fit the inputs")
    source, aggregation = applied.value("program", str), applied.value("aggregation", str)
    program = ScalarProgram.parse(source, len(applied.inputs))
    dtype = cast("DTypeName", infer_steps(program, [tensor.dtype for tensor in applied.inputs])[-1].result_type)
    aggregates = len(result) < len(extents)
    fits = aggregation in AGGREGATIONS and dtype in NUMBER_TYPES if aggregates else aggregation == ""
    fits = fits and not (aggregates and any(tensor.dtype in NARROW_FLOATS for tensor in applied.inputs))
    applied.require(fits, f"aggregation '{aggregation[:40]}' of {dtype} over {len(extents) - len(result)} indices")
    order = tuple(extents) if aggregates else result
    places = {name: position for position, name in enumerate(order)}
    kernel, attributes = _choose_kernel(str(equation), program, dtype, aggregation)
    if IN_PLACE in applied.attributes:
        reads_all = windows[0] == Block.whole(applied.inputs[0].shape)
        written = kernel == "map" and labels[0] == result and reads_all and dtype == applied.inputs[0].dtype
        applied.require(written and applied.value(IN_PLACE, bool), "it is not what its first input can be written over")
        attributes = {**attributes, IN_PLACE: True}
    return OperatorMeaning(
        kernel,
        attributes,
        (TensorForm(dims, tuple(extents[name] for name in result), dtype),),
        tuple(IndexForm(name, extents[name]) for name in order),
        tuple(place_names(names, window, places) for names, window in zip(labels, windows, strict=True)),
        (direct([places[name] for name in result]),),
        (aggregation or "sum",),
    )


def place_names(names: Sequence[str], window: Block, places: Mapping[str, int]) -> tuple[BlockAxis, ...]:
    """An index counts from the start of the window in each dimension that has its name."""
    return tuple(shifted(places[name], lower) for name, lower in zip(names, window.lower, strict=True))


def read_windows(applied: Application, tensors: Sequence[TensorForm]) -> list[Block]:
    """Per tensor the part that is read of it."""
    if "windows" not in applied.attributes:
        return [Block.whole(tensor.shape) for tensor in tensors]
    windows = parse_windows(applied.value("windows", str), [tensor.shape for tensor in tensors])
    return [Block.whole(t.shape) if box is None else box for t, box in zip(tensors, windows, strict=True)]


def _choose_kernel(
    indices: str, program: ScalarProgram, dtype: str, aggregation: str
) -> tuple[str, dict[str, Attribute]]:
    if not aggregation:
        return "map", {"program": program.text, "indices": indices}
    factor = program.product_factor if aggregation == "sum" and program.arity > 1 else None
    if factor == 1:
        return "contract", {"equation": indices}
    if factor is not None and dtype in FLOATS:
        return "contract", {"equation": indices, "scale": factor}
    return "reduce", {"program": program.text, "indices": indices, "aggregation": aggregation}
