"""Operators that stand for another one and differ from it in some respects."""

from __future__ import annotations

from dataclasses import dataclass

from einc.core.spec import FunctionSpec
from einc.core.tensor import TensorDesc
from einc.ops.base import Attributes, Operator
from einc_runtime.plan.schema import JointAggregation
from einc_runtime.plan.work import Work


@dataclass(frozen=True, slots=True)
class WrappingOperator(Operator):
    """What the operator `plain` is, where a class that derives from this one does not say otherwise."""

    plain: Operator

    @property
    def title(self) -> str:
        return self.plain.title

    @property
    def inputs(self) -> tuple[TensorDesc, ...]:
        return self.plain.inputs

    @property
    def outputs(self) -> tuple[TensorDesc, ...]:
        return self.plain.outputs

    @property
    def attributes(self) -> Attributes:
        return self.plain.attributes

    @property
    def aggregations(self) -> tuple[str, ...]:
        return self.plain.aggregations

    @property
    def joint_aggregations(self) -> tuple[JointAggregation, ...]:
        return self.plain.joint_aggregations

    @property
    def memory_orders(self) -> tuple[tuple[int, ...] | None, ...]:
        return self.plain.memory_orders

    def flops(self, function: FunctionSpec) -> int:
        return self.plain.flops(function)

    def traffic(self, function: FunctionSpec) -> int:
        return self.plain.traffic(function)

    def work(self, function: FunctionSpec) -> Work | None:
        return self.plain.work(function)

    @property
    def precision(self) -> str:
        return self.plain.precision

    def fan_in(self, k: int) -> int:
        return self.plain.fan_in(k)
