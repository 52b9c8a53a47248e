"""Operators of which `plan.meaning` says everything that a plan has of them, for the compiler and for the proof alike:
their results, where they may be cut, what a block reads and which kernel runs it. A file of `ops` adds what only the
compiler needs: how it is called, what it costs, and its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TypeVar

from einc.core.intervals import ShardableIndex
from einc.core.tensor import DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.operations import FAMILIES
from einc_runtime.plan.meaning.terms import Application, Axes, BlockAxis, OperatorMeaning, TensorForm, block_of
from einc_runtime.plan.schema import JointAggregation


class DerivedOperator(Operator):
    """An operator whose family and attributes say all of it."""

    __slots__ = ()

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return tuple(TensorDesc(form.dims, form.shape, DType(form.dtype)) for form in derive(self).results)

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        return tuple(ShardableIndex(form.name, form.extent, form.cuts) for form in derive(self).indices)

    @property
    def aggregations(self) -> tuple[str, ...]:
        return derive(self).aggregations

    @property
    def joint_aggregations(self) -> tuple[JointAggregation, ...]:
        return derive(self).joint_aggregations

    @property
    def kernel(self) -> KernelCall:
        meaning = derive(self)
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in meaning.attributes.items()}
        return KernelCall(meaning.kernel, tuple(values.items()))


_Kind = TypeVar("_Kind", bound=DerivedOperator)


class DerivedMappedOperator(DerivedOperator, MappedOperator):
    """One of which each dimension of its blocks follows one index."""

    __slots__ = ()

    @property
    def reads(self) -> tuple[TensorType, ...]:
        meaning = derive(self)
        ranges = [(0, form.extent) for form in meaning.indices]
        return tuple(block_of(axes, desc.shape, ranges) for axes, desc in zip(meaning.inputs, self.inputs, strict=True))

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        meaning = derive(self)
        return tuple(_map_axes(axes, meaning) for axes in meaning.inputs)

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        meaning = derive(self)
        return tuple(_map_axes(axes, meaning) for axes in meaning.outputs)


def _map_axes(axes: Axes, meaning: OperatorMeaning) -> tuple[DimMap, ...]:
    """Each dimension follows one index: no bounds follow from the intervals of several."""
    plain = [axis for axis in axes if isinstance(axis, BlockAxis)]
    return tuple(DimMap() if a.index is None else DimMap(meaning.indices[a.index].name, a.bounds) for a in plain)


@lru_cache(maxsize=4096)
def derive(operator: Operator) -> OperatorMeaning:
    """What a plan says of an operator. Raises OperatorError where its family has no such attributes."""
    return derive_family(operator.family, operator.inputs, operator.attributes)


def keep_derivable(operator: _Kind) -> _Kind | None:
    """The operator, if its family has its attributes; else None: fusion then leaves its parts as they are."""
    try:
        derive(operator)
    except OperatorError:
        return None
    return operator


def derive_family(family: str, inputs: Sequence[TensorDesc], attributes: Attributes) -> OperatorMeaning:
    """What a plan says of a family with these attributes and inputs. Raises OperatorError where there is no such
    operator."""
    try:
        return FAMILIES[family](apply_family(family, inputs, attributes))
    except PlanFault as fault:
        raise OperatorError(fault.message) from None


def restore_fields(kind: type[_Kind]) -> Callable[[tuple[TensorDesc, ...], Attributes], _Kind]:
    """The function that restores the operators of a class from a plan. Its fields are its inputs, in order, and its
    attributes, as `Operator` has them."""

    def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> _Kind:
        derive_family(kind.family, inputs, attributes)
        remaining, values = list(inputs), dict(attributes)
        tensors: dict[str, TensorDesc | tuple[TensorDesc, ...]] = {}
        for field in fields(kind):  # type: ignore[arg-type]
            if field.type == "TensorDesc":
                tensors[field.name] = remaining.pop(0)
            elif field.type == "tuple[TensorDesc, ...]":
                tensors[field.name] = tuple(remaining)
        return kind(**tensors, **values)

    return restore


def apply_family(family: str, inputs: Sequence[TensorDesc], attributes: Attributes) -> Application:
    """A family with these attributes, applied to tensors, as a plan has it."""
    forms = tuple(TensorForm(desc.dims, desc.shape, desc.dtype.value) for desc in inputs)
    return Application(family, forms, {name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items()})
