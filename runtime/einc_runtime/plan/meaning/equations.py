"""Index equations: a scalar program over joined tensors, aggregated over the indices that the result lacks.

Every index may be cut anywhere. The intervals of an index of the result tile the output; those of any other index make
partial outputs. A product that is summed is the kernel `contract`, everything else is `map` or `reduce`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from einc_runtime.plan.meaning.terms import (
    Application,
    Axes,
    IndexForm,
    Interval,
    OperatorMeaning,
    TensorForm,
    direct,
    shifted,
)
from einc_runtime.plan.scalar_programs import ScalarProgram, infer_steps
from einc_runtime.plan.schema import FLOATS, Attribute, DTypeName

AGGREGATIONS = ("sum", "max", "min", "prod")
MAX_INDICES = 30
"""Some versions of numpy have arrays of at most 32 dimensions; two are kept for matrix products."""

_RANGE = re.compile(r"(\d{1,18}):(\d{1,18})", re.A)


def equation(applied: Application) -> OperatorMeaning:
    """`indices` names the index of every dimension of every input and of the result: "i j, j k -> i k"."""
    applied.allow(("indices", "dims", "program", "aggregation"), ("windows",))
    text, dims = applied.value("indices", str), applied.items("dims", str)
    left, arrow, right = text.partition("->")
    labels = [tuple(names.split()) for names in left.split(",")]
    result = tuple(right.split())
    applied.require(bool(arrow) and "->" not in right and len(labels) == len(applied.inputs), "indices do not fit")
    windows = read_windows(applied, applied.inputs)
    extents: dict[str, int] = {}
    for names, window in zip(labels, windows, strict=True):
        applied.require(len(names) == len(window), f"{len(names)} indices for {len(window)} dimensions")
        for name, (lower, upper) in zip(names, window, strict=True):
            known = extents.setdefault(name, upper - lower)
            applied.require(known == upper - lower, f"index {name} has two extents")
    known_result = len(set(result)) == len(result) and set(result) <= set(extents)
    applied.require(known_result and len(dims) == len(result), "the result does not fit the inputs")
    applied.require(len(extents) <= MAX_INDICES, f"{len(extents)} indices; at most {MAX_INDICES} are supported")
    source, aggregation = applied.value("program", str), applied.value("aggregation", str)
    program = ScalarProgram.parse(source, len(applied.inputs))
    dtype = cast("DTypeName", infer_steps(program, [tensor.dtype for tensor in applied.inputs])[-1].result_type)
    aggregates = len(result) < len(extents)
    fits = aggregation in AGGREGATIONS and dtype != "bool" if aggregates else aggregation == ""
    applied.require(fits, f"aggregation '{aggregation[:40]}' of {dtype} over {len(extents) - len(result)} indices")
    order = tuple(extents) if aggregates else result
    places = {name: position for position, name in enumerate(order)}
    kernel, attributes = _choose_kernel(text, program, dtype, aggregation)
    return OperatorMeaning(
        kernel,
        attributes,
        (TensorForm(dims, tuple(extents[name] for name in result), dtype),),
        tuple(IndexForm(name, extents[name]) for name in order),
        tuple(_place(names, window, places) for names, window in zip(labels, windows, strict=True)),
        (direct([places[name] for name in result]),),
        (aggregation or "sum",),
    )


def _place(names: Sequence[str], window: Sequence[Interval], places: dict[str, int]) -> Axes:
    """An index counts from the start of the window in each dimension that has its name."""
    return tuple(shifted(places[name], lower) for name, (lower, _) in zip(names, window, strict=True))


def read_windows(applied: Application, tensors: Sequence[TensorForm]) -> list[list[Interval]]:
    """Per tensor the range that is read of every dimension. In `windows`, `-` stands for all of a tensor."""
    windows = [[(0, extent) for extent in tensor.shape] for tensor in tensors]
    if "windows" in applied.attributes:
        parts = applied.value("windows", str).split(", ")
        applied.require(len(parts) == len(windows), f"{len(parts)} windows for {len(windows)} inputs")
        for k, part in enumerate(parts):
            if part != "-":
                windows[k] = _read_window(applied, part, tensors[k])
    return windows


def _read_window(applied: Application, text: str, tensor: TensorForm) -> list[Interval]:
    found = [_RANGE.fullmatch(word) for word in text.split(" ")]
    ranges = [(int(match[1]), int(match[2])) for match in found if match is not None]
    inside = len(ranges) == len(found) == tensor.rank
    inside = inside and all(lo < up <= extent for (lo, up), extent in zip(ranges, tensor.shape, strict=True))
    applied.require(inside, f"window '{text[:40]}' is no part of {tensor}")
    return ranges


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
