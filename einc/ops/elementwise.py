"""Elementwise operators: every scalar function applied to tensors whose dimensions are aligned by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from einc.core.tensor import ELEMENT_TYPES, DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, format_value, make_unique, reject_others, take_tensor_and_names
from einc.ops.base import Attributes, Operator
from einc.ops.equation import build_equation
from einc.ops.functions import CALL_SIGNATURES, COMPOSED, fit_literal, infer_step_types
from einc.ops.scalar import make_literal, make_step
from einc_runtime.plan.scalar_programs import (
    EarlierStep,
    FunctionStep,
    Operand,
    ScalarInput,
    ScalarLiteral,
    ScalarProgram,
)

BINARY_EXTREMES = ("max", "min")
"""Called through `shorthands`, where the same names are reductions of one operand."""

CALLS = (*(name for name in CALL_SIGNATURES if ":" not in name and name not in BINARY_EXTREMES), "cast")


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """A scalar function of tensors and literals, such as `mul(x, 0.5)`; `cast(x, "f16")` names an element type."""
    if name == "cast":
        return _make_cast(arguments, attributes)
    reject_others(name, attributes)
    arity = CALL_SIGNATURES[name].arity
    if len(arguments) != arity:
        raise OperatorError(
            f"{name} takes {arity} operand{'s' * (arity > 1)}, not {len(arguments)}",
            argument=arity if len(arguments) > arity else None,
        )
    operands: list[Operand] = []
    descs: list[TensorDesc] = []
    for position, argument in enumerate(arguments):
        if isinstance(argument, TensorDesc):
            operands.append(ScalarInput(len(descs)))
            descs.append(argument)
        elif isinstance(argument, str | tuple):
            raise OperatorError(
                f"{name}: operand {position + 1} is {format_value(argument)}, not a tensor or number", argument=position
            )
        else:
            operands.append(make_literal(argument))
    if not descs:
        raise OperatorError(f"{name}: at least one operand must be a tensor", argument=0)
    # checked here too, where positions are those of the arguments, literals included
    _, types = infer_step_types(name, [x.dtype if isinstance(x, TensorDesc) else None for x in arguments])
    for position, (operand, dtype) in enumerate(zip(operands, types, strict=True)):
        if isinstance(operand, ScalarLiteral):
            _check_literal(name, position, operand, dtype)
    places = [position for position, argument in enumerate(arguments) if isinstance(argument, TensorDesc)]
    return _align(name, descs, places, ScalarProgram(len(descs), _list_steps(name, operands)))


def _list_steps(name: str, operands: Sequence[Operand]) -> tuple[FunctionStep, ...]:
    """One step, or those of a composition."""
    if name not in COMPOSED:
        return (FunctionStep(name, tuple(operands)),)
    values = [operands[0], *(EarlierStep(number) for number in range(len(operands) - 2))]
    return tuple(map(FunctionStep, COMPOSED[name], zip(values, operands[1:], strict=True)))


def _make_cast(arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    reject_others("cast", attributes, "dtype")
    tensor, listed = take_tensor_and_names("cast", arguments, attributes, "dtype")
    names, known = [name for name, _ in listed], [str(dtype) for dtype in ELEMENT_TYPES]
    if len(names) != 1 or names[0] not in known:
        described = " ".join(names) or "nothing"
        where = listed[0][1] if listed else 1
        raise OperatorError(
            f"cast: no element type {format_value(described)}", argument=where, hint="one of " + ", ".join(known)
        )
    return _align("cast", [tensor], [0], make_step(f"cast:{names[0]}", ScalarInput(0)))


def _align(name: str, descs: Sequence[TensorDesc], places: Sequence[int], program: ScalarProgram) -> Operator:
    """The equation in which dimensions of one name have one index; one operand must have all of the names."""
    widest = next((d for d in descs if all(set(misfit.dims) <= set(d.dims) for misfit in descs)), None)
    if widest is None:
        pairs = combinations(zip(places, descs, strict=True), 2)
        first, position, misfit = next((a, number, b) for (_, a), (number, b) in pairs if not _is_comparable(a, b))
        extra = next(dim for dim in misfit.dims if dim not in first.dims)
        lacking = next(dim for dim in first.dims if dim not in misfit.dims)
        raise OperatorError(
            f"{name}: operand {position + 1}, {misfit}, has dimension '{extra}' but not '{lacking}' of {first}",
            argument=position,
            hint="dimensions are aligned by name, and one operand's must include the other's; "
            "the left side of an index equation names them",
        )
    labels = make_unique(widest.dims)
    inputs = []
    for position, desc in zip(places, descs, strict=True):
        if desc.dims == widest.dims:
            inputs.append((desc, labels))
        elif desc.rank and (len(set(desc.dims)) < desc.rank or len(set(widest.dims)) < widest.rank):
            raise OperatorError(
                f"{name}: the dimensions of {desc} cannot be aligned with {widest} by name: one stands twice",
                argument=position,
                hint="use an index equation",
            )
        else:
            inputs.append((desc, desc.dims))
        for dim, extent in zip(desc.dims, desc.shape, strict=True):
            expected = widest.shape[widest.dims.index(dim)]
            if desc.dims != widest.dims and extent != expected:
                raise _make_extent_error(name, position, dim, extent, expected)
        if desc.dims == widest.dims and desc.shape != widest.shape:
            at = next(i for i in range(desc.rank) if desc.shape[i] != widest.shape[i])
            raise _make_extent_error(name, position, desc.dims[at], desc.shape[at], widest.shape[at])
    return build_equation(inputs, list(zip(labels, widest.dims, strict=True)), program, None)


def _check_literal(name: str, position: int, literal: ScalarLiteral, dtype: DType) -> None:
    try:
        fit_literal(literal.value, dtype)
    except OperatorError as fault:
        raise OperatorError(f"{name}: {fault.message}", argument=position, hint=fault.hint) from None


def _is_comparable(a: TensorDesc, b: TensorDesc) -> bool:
    return set(a.dims) <= set(b.dims) or set(a.dims) >= set(b.dims)


def _make_extent_error(name: str, position: int, dim: str, extent: int, expected: int) -> OperatorError:
    return OperatorError(
        f"{name}: dimension '{dim}' of operand {position + 1} is {extent}, expected {expected}",
        argument=position,
        hint="dimensions of one name must have one extent",
    )
