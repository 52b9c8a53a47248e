"""What every step of a plan enqueues: kernels from the registry, and CUDA's own copies for transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.errors import PlanFault
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.memory import DeviceMemory
from einc_runtime.execution.cuda.steps import Part, Work
from einc_runtime.execution.task_errors import preparing
from einc_runtime.kernels.base import Invocation, JointInvocation
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Kernels, Launch
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.joint_aggregation import Group, groups
from einc_runtime.plan.schema import AggregateTask, AnyTask, Bundle, CopyTask, KernelTask, TransferTask

MAX_COPIES = 32
"""Copies (nodes of a graph) for one transfer; regions that take more are moved by a kernel."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """Prepares work for a plan whose memory is there; `slots` are the addresses of the host buffers."""

    bundle: Bundle
    tasks: Sequence[AnyTask]
    memory: DeviceMemory
    kernels: Kernels
    driver: Driver
    targets: Mapping[int, GpuTarget]
    slots: Sequence[int]
    groups: Mapping[int, Group]

    @staticmethod
    def of(
        bundle: Bundle,
        tasks: Sequence[AnyTask],
        memory: DeviceMemory,
        kernels: Kernels,
        driver: Driver,
        targets: Mapping[int, GpuTarget],
        slots: Sequence[int],
    ) -> Workshop:
        return Workshop(bundle, tasks, memory, kernels, driver, targets, slots, groups(bundle))

    def prepared(self, work: Work) -> GpuKernel:
        """The kernel of a step that does a task or a part of it. Raises PlanFault and MissingFault."""
        task = self.tasks[work.task]
        with preparing(work.task, task):
            return self._prepared(task, work)

    def with_epilogue(self, first: int, then: int, place: int) -> GpuKernel | None:
        """A kernel for two tasks, of which the second reads what the first computes as its operand at `place`."""
        one, other = self.tasks[first], self.tasks[then]
        assert isinstance(one, KernelTask)
        assert isinstance(other, KernelTask)
        return self.kernels.with_epilogue(self._invocation(one), self._invocation(other), place, self._target(one.site))

    def batched_pair(self, first: int, second: int) -> GpuKernel | None:
        """A kernel for two tasks that share an operand."""
        one, other = self.tasks[first], self.tasks[second]
        assert isinstance(one, KernelTask)
        assert isinstance(other, KernelTask)
        return self.kernels.batched_pair(self._invocation(one), self._invocation(other), self._target(one.site))

    def _invocation(self, task: KernelTask) -> Invocation[GpuArray]:
        operation = self.bundle.operations[task.operation]
        blocks = operation.functions[task.function]
        reads, writes = self.memory.views(task.reads), self.memory.views(task.writes)
        return Invocation(operation.kernel, operation.kernel_attributes, reads, writes, blocks.inputs, blocks.outputs)

    def _prepared(self, task: AnyTask, work: Work) -> GpuKernel:
        views = self.memory.views
        if isinstance(task, KernelTask):
            return self.kernels.kernel(self._invocation(task), self._target(task.site))
        if isinstance(task, AggregateTask):
            reads, writes, target = views(task.reads), views(task.writes), self._target(task.site)
            if len(writes) == 1:
                return self.kernels.aggregate(task.aggregation, reads, writes[0], target)
            group = self.groups[self.bundle.buffers[task.writes[0].buffer].tensor]
            return self.kernels.aggregate_jointly(JointInvocation(task.aggregation, reads, writes, group.dims), target)
        if isinstance(task, CopyTask):
            pairs = views(task.reads), views(task.writes)
            for source, target_view in zip(*pairs, strict=True):
                _require_alike(source, target_view)
            return self.kernels.moves(*pairs, self._target(task.site))
        assert isinstance(task, TransferTask), "fences have no work"
        return self._transfer(self.memory.view(task.read), self.memory.view(task.write), work)

    def _transfer(self, source: GpuArray, target: GpuArray, work: Work) -> GpuKernel:
        _require_alike(source, target)
        device = target.device if work.part is Part.IN else source.device
        if work.part is not Part.TASK:
            dense = strides_of(source.shape, source.itemsize, source.memory_order)
            host = GpuArray(self.slots[work.slot], source.shape, dense, source.dtype, device)
            source, target = (source, host) if work.part is Part.OUT else (host, target)
        if count_2d_copies(source.shape, source.itemsize, target.strides, source.strides) > MAX_COPIES:
            return self.kernels.moves([source], [target], self.targets[device])
        rows = list_2d_copies(source.shape, source.itemsize, target.strides, source.strides)
        copy_async = self.driver.copy_async
        calls = [
            (target.pointer + row.target, row.target_pitch, source.pointer + row.source, row.source_pitch,
             row.width, row.height)
            for row in rows
        ]  # fmt: skip

        def launch(stream: int) -> None:
            for call in calls:
                copy_async(*call, stream)

        way = {Part.TASK: "device to device", Part.OUT: "to the host", Part.IN: "from the host"}[work.part]
        return GpuKernel(_bound(launch), Description("cuda", "", f"memcpy, {way}"))

    def _target(self, site: int) -> GpuTarget:
        return self.targets[self.memory.devices[site]]


def _bound(launch: Launch) -> Callable[[int, int], Launch]:
    return lambda workspace, status: launch


def _require_alike(source: GpuArray, target: GpuArray) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise PlanFault(f"a region of {source.dtype}{source.shape} moves to one of {target.dtype}{target.shape}")
