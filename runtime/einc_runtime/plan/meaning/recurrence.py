"""The family `recurrence`: equations that are computed at each step along one index, from values of the step before.

It is whole along that index. Each other one may be cut where no value is read that was computed at another position.
"""

from __future__ import annotations

import math

from einc_runtime.plan.meaning.terms import (
    INTEGERS,
    MAX_INDEX_VECTORS,
    WHOLE,
    Application,
    Axes,
    BlockAxis,
    IndexForm,
    OperatorMeaning,
    TensorForm,
)
from einc_runtime.plan.recurrences import (
    RECURRENCE_TEXTS,
    OperandRead,
    Recurrence,
    RecurrenceEquation,
    parse_recurrence,
)
from einc_runtime.plan.scalar_functions import COMPUTED_ELEMENT_TYPES
from einc_runtime.plan.scalar_programs import ScalarLiteral, infer_steps
from einc_runtime.plan.schema import Attribute


def recurrence(applied: Application) -> OperatorMeaning:
    """All attributes are those of the recurrence, but for `dims`: the names of the results' dimensions, one after the
    other."""
    applied.allow(("loops", *RECURRENCE_TEXTS, "results", "dims"))
    texts = {name: applied.items(name, str) for name in RECURRENCE_TEXTS}
    parsed = parse_recurrence(applied.value("loops", str), **texts, results=applied.items("results", int))
    _require_operands(applied, parsed)
    for equation in parsed.equations:
        _require_types(applied, parsed, equation)
    dims = list(applied.items("dims", str))
    ranks = [len(parsed.equations[number].loops) for number in parsed.results]
    applied.require(len(dims) == sum(ranks), f"{len(dims)} names for {sum(ranks)} dimensions of results")
    cut = parsed.cut_loops(len(applied.inputs))

    def follow(names: tuple[str | None, ...]) -> Axes:
        return tuple(BlockAxis(cut.index(name)) if name in cut else WHOLE for name in names)

    attributes: dict[str, Attribute] = {name: list(value) for name, value in texts.items()}
    attributes |= {"loops": applied.value("loops", str), "results": list(parsed.results)}
    return OperatorMeaning(
        "recurrence",
        attributes,
        tuple(
            TensorForm(
                tuple(dims[sum(ranks[:position]) : sum(ranks[: position + 1])]),
                parsed.shape_of(number),
                parsed.equations[number].dtype,  # type: ignore[arg-type]
            )
            for position, number in enumerate(parsed.results)
        ),
        tuple(IndexForm(name, parsed.extents[name]) for name in cut),
        tuple(follow(parsed.loops_of_operand(operand)) for operand in range(len(applied.inputs))),
        tuple(follow(parsed.equations[number].loops) for number in parsed.results),
        tuple(parsed.equations[number].aggregation or "sum" for number in parsed.results),
    )


def _require_operands(applied: Application, parsed: Recurrence) -> None:
    """Each operand is read, and at loops of the extents of its dimensions."""
    read = {read.source for read in parsed.operand_reads}
    applied.require(read == set(range(len(applied.inputs))), f"{len(read)} operands are read of {len(applied.inputs)}")
    extents = parsed.extents
    for operand_read in parsed.operand_reads:
        shape = applied.inputs[operand_read.source].shape
        fits = tuple(extents[name] for name in operand_read.loops) == shape
        applied.require(fits, f"{operand_read} of an operand of shape {shape}")
    vectors = sum(math.prod(extents[name] for name in equation.all_loops) for equation in parsed.equations)
    applied.require(vectors < MAX_INDEX_VECTORS, "it has too many index vectors")


def _require_types(applied: Application, parsed: Recurrence, equation: RecurrenceEquation) -> None:
    """An equation results in its own type, and so does what it starts from."""
    types = [
        applied.inputs[read.source].dtype if isinstance(read, OperandRead) else parsed.equations[read.source].dtype
        for read in equation.reads
    ]
    known = all(dtype in COMPUTED_ELEMENT_TYPES for dtype in (*types, equation.dtype))
    applied.require(known, f"no recurrence computes {equation.dtype[:20]} from {', '.join(types)[:100]}")
    result = infer_steps(equation.scalar, types)[-1].result_type
    applied.require(result == equation.dtype, f"'{equation}' results in {result}")
    applied.require(not (equation.aggregation and result == "bool"), f"'{equation}' aggregates truth values")
    initial = equation.initial
    if isinstance(initial, OperandRead):
        dtype = applied.inputs[initial.source].dtype
        applied.require(dtype == equation.dtype, f"'{equation}' starts from {dtype}")
    elif initial:
        value = ScalarLiteral(initial).value
        is_bool, is_whole = isinstance(value, bool), type(value) is int
        fits = is_bool if equation.dtype == "bool" else not is_bool and (is_whole or equation.dtype not in INTEGERS)
        if fits and equation.dtype in INTEGERS:
            bits = 31 if equation.dtype == "i32" else 63
            fits = -(1 << bits) <= value < 1 << bits
        applied.require(fits, f"'{equation}' starts from another type")
