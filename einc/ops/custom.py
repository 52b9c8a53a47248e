"""Operators that Python packages define (`einc_runtime.custom`). Their signature, which is in the plan, says what they
take and return, and along which dimensions they may be cut."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from einc.core.spec import FunctionSpec
from einc.core.tensor import Array, TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import Argument, require_tensors
from einc.ops.base import Attributes, Operator
from einc.ops.derived import DerivedMappedOperator, apply_family, restore_fields
from einc_runtime.custom import load_custom_operator
from einc_runtime.plan.meaning.custom import BoundSignature, bind, format_settings, parse_settings


@dataclass(frozen=True, slots=True)
class CustomOperation(DerivedMappedOperator):
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
    def attributes(self) -> Attributes:
        return {
            "operator": self.operator,
            "signature": self.signature,
            "uncut": self.uncut,
            "aggregation": self.aggregation,
            "operations": self.operations,
            "settings": self.settings,
        }

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

    @property
    def _bound(self) -> BoundSignature:
        return _bind(self)


@lru_cache(maxsize=4096)
def _bind(operator: CustomOperation) -> BoundSignature:
    return bind(apply_family(operator.family, operator.operands, operator.attributes))


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
        return restore_fields(CustomOperation)(inputs, attributes)
    except OperatorError as error:
        raise OperatorError(f"{attributes.get('operator', CustomOperation.family)}: {error.message}") from None


FAMILIES = {CustomOperation.family: restore}
