"""Plans for whatever the executor asks for: of one kernel, of two at once, of aggregations and moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray, GpuKernel, Target
from einc_runtime.kernels.triton import planners
from einc_runtime.kernels.triton.epilogue import planned_with_epilogue
from einc_runtime.kernels.triton.plan import Plan, layout
from einc_runtime.kernels.triton.repeated import ADDRESSED, RepeatedPlans, key_of
from einc_runtime.kernels.triton.side_by_side import planned_side_by_side


class PlannedKernels(ABC):
    """See `einc_runtime.kernels.gpu.Kernels`. What becomes of a plan is for subclasses to say."""

    def __init__(self) -> None:
        self.repeated = RepeatedPlans()

    def kernel(self, invocation: Invocation[GpuArray], target: Target) -> GpuKernel:
        count = len(invocation.inputs)

        def plan(views: Sequence[Array]) -> Plan:
            return planners.plan_kernel(invocation.on(views[:count], views[count:]), target.architecture)

        arrays = [*invocation.inputs, *invocation.outputs]
        if invocation.name in ADDRESSED:
            return self.prepared(plan([layout(array) for array in arrays]), target)
        return self.prepared(self.repeated.planned(key_of(invocation, target.architecture), arrays, plan), target)

    def with_epilogue(
        self, first: Invocation[GpuArray], then: Invocation[GpuArray], place: int, target: Target
    ) -> GpuKernel | None:
        if first.name != "contract" or then.name != "map":
            return None
        plan = planned_with_epilogue(first, then, place)
        return None if plan is None or not self.has_epilogues(plan, target) else self.prepared(plan, target)

    def side_by_side(
        self, first: Invocation[GpuArray], second: Invocation[GpuArray], target: Target
    ) -> GpuKernel | None:
        if first.name != "contract" or second.name != "contract":
            return None
        plan = planned_side_by_side(first, second, target.multiprocessors)
        return None if plan is None else self.prepared(plan, target)

    def has_epilogues(self, plan: Plan, target: Target) -> bool:
        """Whether the products of a plan can be had with their epilogues."""
        return False

    def aggregate(self, aggregation: str, reads: Sequence[GpuArray], write: GpuArray, target: Target) -> GpuKernel:
        def plan(views: Sequence[Array]) -> Plan:
            return planners.plan_aggregate(aggregation, views[:-1], views[-1])

        return self.prepared(self.repeated.planned(("aggregate", aggregation), [*reads, write], plan), target)

    def merge(
        self,
        aggregation: str,
        reads: Sequence[GpuArray],
        writes: Sequence[GpuArray],
        dims: Sequence[Sequence[int]],
        target: Target,
    ) -> GpuKernel:
        views, results = [layout(x) for x in reads], [layout(x) for x in writes]
        return self.prepared(planners.plan_merge(aggregation, views, results, dims), target)

    def moves(self, reads: Sequence[GpuArray], writes: Sequence[GpuArray], target: Target) -> GpuKernel:
        return self.prepared(planners.plan_moves([layout(x) for x in reads], [layout(x) for x in writes]), target)

    @abstractmethod
    def prepared(self, plan: Plan, target: Target) -> GpuKernel:
        """The kernel of a plan."""

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def give_up(self, reason: str) -> bool:
        return False

    @abstractmethod
    def versions(self) -> Mapping[str, str]: ...

    @abstractmethod
    def close(self) -> None: ...
