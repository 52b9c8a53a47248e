"""Operators that Python packages define (`einc_runtime.custom`). Their signature, which is in the plan, says what they
take and return, and along which dimensions they may be cut."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from einc.core.intervals import ShardableIndex
from einc.core.spec import FunctionSpec
from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, require_tensors
from einc.ops.base import Attributes, DimMap, KernelCall, MappedOperator, Operator
from einc_runtime.custom import load_custom_operator
from einc_runtime.errors import PlanFault
from einc_runtime.plan.meaning.custom import bind, custom
from einc_runtime.plan.meaning.custom_signatures import BoundSignature, format_settings, parse_settings
from einc_runtime.plan.meaning.terms import Application, TensorForm

if TYPE_CHECKING:
    from einc.ops.base import Array


@dataclass(frozen=True, slots=True)
class CustomOperation(MappedOperator):
    """An operator of a package applied to tensors; the fields are those of `plan.meaning.custom`."""

    family: ClassVar[str] = "custom"

    operands: tuple[TensorDesc, ...]
    operator: str
    signature: str
    uncut: tuple[str, ...]
    aggregation: str
    operations: float
    settings: str

    @property
    def title(self) -> str:
        return self.operator

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.operands

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return tuple(TensorDesc(form.dims, form.shape, DType(form.dtype)) for form in self._bound.result_forms)

    @property
    def attributes(self) -> Attributes:
        return {
            "operator": self.operator,
            "signature": self.signature,
            "uncut": self.uncut,
            "aggregation": self.aggregation,
            "operations": self.operations,
            "settings": self.settings,
        }

    @property
    def indices(self) -> tuple[ShardableIndex, ...]:
        bound = self._bound
        return tuple(ShardableIndex(bound.names[label], bound.extents[label]) for label in self._cuts)

    @property
    def input_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(map(self._follow, self._bound.operands))

    @property
    def output_maps(self) -> tuple[tuple[DimMap, ...], ...]:
        return tuple(map(self._follow, self._bound.results))

    @property
    def aggregations(self) -> tuple[str, ...]:
        return (self.aggregation or "sum",) * len(self._bound.results)

    @property
    def kernel(self) -> KernelCall:
        names = ("operator", "signature", "settings")
        return KernelCall(self.family, tuple((name, self.attributes[name]) for name in names))

    def reference(self, *arrays: Array) -> tuple[Array, ...]:
        import numpy as np

        from einc.ops.evaluate import find_accumulating_dtype

        wide = [
            x.astype(find_accumulating_dtype(desc.dtype)) if desc.dtype.is_float else x
            for x, desc in zip(arrays, self.operands, strict=True)
        ]
        results = load_custom_operator(self.operator).run(self.operator, wide, parse_settings(self.settings))
        return tuple(
            np.asarray(result).astype(desc.dtype.numpy()) for result, desc in zip(results, self.outputs, strict=True)
        )

    def flops(self, function: FunctionSpec) -> int:
        """`operations` for each index vector of the labels."""
        extents = dict(self._bound.extents)
        blocks = zip(self._bound.operands, function.inputs, strict=True)
        for labels, block in blocks:
            extents.update((label, up - lo) for label, lo, up in zip(labels, block.lower, block.upper, strict=True))
        return round(self.operations * math.prod(extents.values()))

    def _follow(self, labels: Sequence[str]) -> tuple[DimMap, ...]:
        names = self._bound.names
        return tuple(DimMap(names[label]) if label in self._cuts else DimMap() for label in labels)

    @property
    def _cuts(self) -> tuple[str, ...]:
        return self._bound.list_cuts(self.uncut, self.aggregation)

    @property
    def _bound(self) -> BoundSignature:
        return _bind(self)


def _apply(operator: CustomOperation) -> Application:
    forms = tuple(TensorForm(desc.dims, desc.shape, desc.dtype.value) for desc in operator.operands)
    attributes = {name: list(v) if isinstance(v, tuple) else v for name, v in operator.attributes.items()}
    return Application(operator.family, forms, attributes)


@lru_cache(maxsize=4096)
def _bind(operator: CustomOperation) -> BoundSignature:
    return bind(_apply(operator))


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """The operator `name` of an installed package; its settings are given by name."""
    definition = load_custom_operator(name)
    tensors = require_tensors(name, arguments, len(definition.signature.operands))
    defaults = definition.defaults
    for key in attributes:
        if key not in defaults:
            hint = f"it takes {', '.join(defaults)}" if defaults else "it takes none"
            raise OperatorError(f"{name} has no setting '{key}'", argument=key, hint=hint)
    settings = {**defaults, **attributes}
    for key, value in settings.items():
        if value is inspect.Parameter.empty:
            raise OperatorError(f"{name} needs the setting '{key}'", hint=f"{key}=...")
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    operator = CustomOperation(
        tensors, name, str(definition.signature), definition.uncut, definition.aggregation, 1.0, format_settings(plain)
    )
    checked = restore(tensors, operator.attributes)
    extents = {label: checked._bound.extents[label] for label in definition.signature.labels}
    return restore(tensors, {**operator.attributes, "operations": definition.count_operations(extents)})


def restore(inputs: tuple[TensorDesc, ...], attributes: Attributes) -> CustomOperation:
    """The operator with these attributes; raises OperatorError if they are not those of a custom operator. Its package
    need not be installed."""
    try:
        names = ("operator", "signature", "uncut", "aggregation", "operations", "settings")
        forms = tuple(TensorForm(desc.dims, desc.shape, desc.dtype.value) for desc in inputs)
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items()}
        applied = Application(CustomOperation.family, forms, plain)
        custom(applied)
        return CustomOperation(inputs, *(attributes[name] for name in names))  # type: ignore[arg-type]
    except PlanFault as fault:
        operator = attributes.get("operator", CustomOperation.family)
        raise OperatorError(f"{operator}: {fault.message}") from None


FAMILIES = {CustomOperation.family: restore}
