"""Prepares what every step of a plan enqueues: kernels for tasks, and CUDA's own copies for transfers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from einc_runtime.execution.cuda.devices import DeviceMemory
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.lanes import Lanes
from einc_runtime.execution.cuda.streams import StepKind, StreamStep
from einc_runtime.execution.task_errors import locate_faults
from einc_runtime.kernels.base import GatedInvocations, Invocation, JointInvocation
from einc_runtime.kernels.calls.map import write_aggregation
from einc_runtime.kernels.copies_2d import count_2d_copies, list_2d_copies
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Kernels, Launch, PeerFlags
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.epilogues import GatedTasks
from einc_runtime.plan.joint_aggregation import aggregation_groups
from einc_runtime.plan.launches import JointLaunch
from einc_runtime.plan.regions import reads_of, writes_of
from einc_runtime.plan.schema import AggregateTask, AnyTask, Bundle, CopyTask, KernelTask, TransferTask

MAX_COPIES = 32
"""Copies (nodes of a graph) for one transfer; a kernel moves regions that take more."""

MIN_COPY_ROW_BYTES = 128
"""Rows of CUDA's copies, one line of a GPU's cache; a kernel moves regions with shorter rows. No GPU has been asked
yet: `make gpu-check` prints the speed of copies by the width of their rows."""


_WAYS = {
    StepKind.TASK: "device to device",
    StepKind.STAGE_OUT: "to the host",
    StepKind.STAGE_IN: "from the host",
}


class StepKernels:
    """Prepares the kernels of steps, for a plan whose memory has been taken.

    `tasks` are the tasks as they are run, `staging` the addresses of the host buffers of staged transfers, and `flags`
    those of tasks that are parts of sums (`peer_flags`), some of which do transfers of what they make, `gathers`.
    """

    def __init__(
        self,
        bundle: Bundle,
        tasks: Sequence[AnyTask],
        memory: DeviceMemory,
        *,
        kernels: Kernels,
        driver: Driver,
        targets: Mapping[int, GpuTarget],
        staging: Sequence[int],
        flags: Mapping[int, PeerFlags] = MappingProxyType({}),
        gathers: Collection[int] = (),
        lanes: Lanes | None = None,
    ) -> None:
        self.bundle, self.tasks, self.memory = bundle, tasks, memory
        self.kernels, self.driver, self.targets, self.staging = kernels, driver, targets, staging
        self.flags, self.gathers, self.lanes = flags, gathers, lanes
        self.groups = aggregation_groups(bundle)

    def prepare(self, step: StreamStep) -> GpuKernel:
        """The kernel of a step that does a task or a part of it. Raises PlanFault and MissingFault."""
        task = self.tasks[step.task]
        with locate_faults(step.task, task):
            return self._prepare(task, step)

    def prepare_early_read(self, step: StreamStep) -> GpuKernel | None:
        """A kernel that reads weights of a task into the cache, if there is one."""
        return self.kernels.prepare_early_read(
            self.memory.views(step.regions), self._target(self.tasks[step.task].site)
        )

    def prepare_epilogue(self, first: int, then: int, operand: int) -> GpuKernel | None:
        """A kernel for two tasks, if there is one; this operand of the second is what the first computes."""
        earlier, later = self._invocations(first, then)
        return self.kernels.prepare_with_epilogue(earlier, later, operand, self._target_of(first))

    def prepare_pair(self, first: int, second: int) -> GpuKernel | None:
        """A kernel for two tasks that share an operand, if there is one."""
        earlier, later = self._invocations(first, second)
        return self.kernels.prepare_batched_pair(earlier, later, self._target_of(first))

    def prepare_gated(self, first: int, gated: GatedTasks) -> GpuKernel | None:
        """A kernel for two contractions and the map of their results, if there is one."""
        left, right, then = self._invocations(first, gated.second, gated.then)
        pair = GatedInvocations(left, right, then, gated.places)
        return self.kernels.prepare_gated_pair(pair, self._target_of(first))

    def prepare_launch(self, launch: JointLaunch) -> GpuKernel | None:
        """A kernel for all tasks of a launch, if there is one. Sums that switches can make are none of them."""
        if any(isinstance(task, AggregateTask) and self.memory.view_of_all(task.reads) is not None
               for task in map(self.tasks.__getitem__, launch.tasks)):  # fmt: skip
            return None
        parts = [self._make_part(self.tasks[number]) for number in launch.tasks]
        kept = [number in launch.kept for number in launch.tasks]
        target, flags = self._target(self.tasks[launch.tasks[0]].site), self._find_flags(launch.tasks)
        return self.kernels.prepare_launch(launch.kind, parts, kept, target, flags)

    def _find_flags(self, tasks: Sequence[int]) -> PeerFlags | None:
        """The flags of tasks that one kernel runs, which writes what they make also where it is gathered."""
        flags = self.flags.get(tasks[0])
        if flags is None or not flags.is_gathering:
            return flags
        results = {region for number in tasks for region in writes_of(self.tasks[number])}
        moves = (move for move in map(self.tasks.__getitem__, self.gathers) if isinstance(move, TransferTask))
        views = self.memory.view
        return replace(flags, copies=tuple((views(m.read), views(m.write)) for m in moves if m.read in results))

    def _make_part(self, task: AnyTask) -> Invocation[GpuArray]:
        if isinstance(task, KernelTask):
            return self.make_invocation(task)
        assert isinstance(task, AggregateTask), "launches have kernels and aggregations"
        program, equation = write_aggregation(task.aggregation, len(task.reads), task.writes[0].block.rank)
        attributes = {"program": program, "indices": equation}
        return Invocation("map", attributes, self.memory.views(task.reads), self.memory.views(task.writes))

    def _invocations(self, *numbers: int) -> list[Invocation[GpuArray]]:
        tasks = [self.tasks[number] for number in numbers]
        return [self.make_invocation(task) for task in tasks if isinstance(task, KernelTask)]

    def _target_of(self, number: int) -> GpuTarget:
        task = self.tasks[number]
        assert isinstance(task, KernelTask)
        return self._target(task.site)

    def make_invocation(self, task: KernelTask) -> Invocation[GpuArray]:
        operation = self.bundle.operations[task.operation]
        blocks = operation.functions[task.function]
        reads, writes = self.memory.views(task.reads), self.memory.views(task.writes)
        return Invocation(operation.kernel, operation.kernel_attributes, reads, writes, blocks.inputs, blocks.outputs)

    def _prepare(self, task: AnyTask, step: StreamStep) -> GpuKernel:
        views = self.memory.views
        if step.kind is StepKind.MESSAGES:
            return self._prepare_messages(step.messages)
        if isinstance(task, KernelTask):
            return self.kernels.prepare_kernel(self.make_invocation(task), self._target(task.site))
        if isinstance(task, AggregateTask):
            reads, writes, target = views(task.reads), views(task.writes), self._target(task.site)
            group = self.groups[self.bundle.buffers[task.writes[0].buffer].tensor]
            if len(writes) == 1 and not group.definition:
                shared = self.memory.view_of_all(task.reads) if task.aggregation == "sum" else None
                kernel = None if shared is None else self.kernels.prepare_multicast_sum(shared, writes[0], target)
                if kernel is not None:
                    return kernel
                flags = self._find_flags([step.task])
                return self.kernels.prepare_aggregate(task.aggregation, reads, writes[0], target, flags)
            return self.kernels.prepare_joint_aggregation(
                JointInvocation(task.aggregation, reads, writes, group.dims, group.definition), target
            )
        if isinstance(task, CopyTask):
            pairs = views(task.reads), views(task.writes)
            return self.kernels.prepare_moves(*pairs, self._target(task.site))
        assert isinstance(task, TransferTask), "fences have no kernel"
        return self._prepare_transfer(self.memory.view(task.read), self.memory.view(task.write), step)

    def _prepare_messages(self, numbers: Sequence[int]) -> GpuKernel:
        assert self.lanes is not None, "messages are of a part of a plan"
        tasks = [self.tasks[number] for number in numbers]
        regions = [region for task in tasks for region in (*reads_of(task), *writes_of(task))]
        orders = [self.bundle.tensors[self.bundle.buffers[region.buffer].tensor].order for region in regions]
        target = self._target(tasks[0].site)
        return self.lanes.prepare(numbers, self.memory.views(regions), orders, self.kernels, target)

    def _prepare_transfer(self, source: GpuArray, target: GpuArray, step: StreamStep) -> GpuKernel:
        device = target.device if step.kind is StepKind.STAGE_IN else source.device
        if step.kind is not StepKind.TASK:
            source, target = source.part(step.piece), target.part(step.piece)
            dense = strides_of(source.shape, source.itemsize, source.memory_order)
            host = GpuArray(self.staging[step.staging], source.shape, dense, source.dtype, device)
            source, target = (source, host) if step.kind is StepKind.STAGE_OUT else (host, target)
        if count_2d_copies(source.shape, source.itemsize, target.strides, source.strides) > MAX_COPIES:
            return self.kernels.prepare_moves([source], [target], self.targets[device])
        rows = list_2d_copies(source.shape, source.itemsize, target.strides, source.strides)
        if any(row.height > 1 and row.width < MIN_COPY_ROW_BYTES for row in rows):
            return self.kernels.prepare_moves([source], [target], self.targets[device])
        copy_async = self.driver.copy_async
        calls = [
            (target.pointer + row.target, row.target_pitch, source.pointer + row.source, row.source_pitch,
             row.width, row.height)
            for row in rows
        ]  # fmt: skip

        def launch(stream: int) -> None:
            for call in calls:
                copy_async(*call, stream)

        way = _WAYS[step.kind]
        return GpuKernel(_bind_always(launch), Description("cuda", "", f"memcpy, {way}"))

    def _target(self, site: int) -> GpuTarget:
        return self.targets[self.memory.devices[site]]


def _bind_always(launch: Launch) -> Callable[[int, int], Launch]:
    return lambda workspace, status: launch
