"""The kernel of each task of a plan on the cores of this machine, prepared for the memory of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution import task_errors
from einc_runtime.execution.cpu.memory import HostMemory
from einc_runtime.execution.rewrites import JoinedMap, RewrittenTask
from einc_runtime.kernels.base import ANY_NUMBER, Invocation, JointInvocation, Kernel, Run, ScratchAllocator
from einc_runtime.kernels.index_convolutions import build_with_map
from einc_runtime.kernels.llvm.moves import build_moves
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.kernels.registry import prepare, prepare_aggregate, prepare_joint_aggregation
from einc_runtime.plan.joint_aggregation import aggregation_groups
from einc_runtime.plan.schema import AggregateTask, AnyTask, Bundle, CopyTask, KernelTask, Region, TransferTask

MANY_TASKS = 24
"""In a plan with so many tasks, all are machine code that can be, however small they are. Most are in any case,
and one that needs the interpreter holds up the others for longer than it takes itself."""


class TaskKernels:
    """Prepares the kernels of a plan's tasks, as passes have rewritten them."""

    def __init__(self, bundle: Bundle, memory: HostMemory) -> None:
        self._bundle, self._memory = bundle, memory
        self._groups = aggregation_groups(bundle)

    def prepare(self, item: RewrittenTask) -> Kernel:
        repetitions = ANY_NUMBER if len(self._bundle.tasks) >= MANY_TASKS else item.same_code
        with task_errors.locate_faults(item.origin, item.task):
            if item.then is not None and isinstance(item.task, KernelTask):
                joined = self._make_joined(item.task, item.then)
                first, then = (replace(invocation, repetitions=repetitions) for invocation in joined)
                return build_with_map(first, then, item.then.operand) or _run_both(first, then, item.then.operand)
            return self._prepare_kernel(item.task, repetitions) if item.peer is None else Kernel(_do_nothing)

    def _prepare_kernel(self, task: AnyTask, repetitions: int) -> Kernel:
        views = self._memory.views
        if isinstance(task, KernelTask):
            invocation = self._make_invocation(task.operation, task.reads, task.writes)
            return prepare(replace(invocation, repetitions=repetitions))
        if isinstance(task, AggregateTask):
            reads, writes = views(task.reads), views(task.writes)
            group = self._groups[self._bundle.buffers[task.writes[0].buffer].tensor]
            if len(writes) == 1 and not group.definition:
                return prepare_aggregate(task.aggregation, reads, writes[0], repetitions=repetitions)
            return prepare_joint_aggregation(
                JointInvocation(task.aggregation, reads, writes, group.dims, group.definition, repetitions)
            )
        if isinstance(task, TransferTask):
            return build_moves(views([task.read]), views([task.write]), repetitions)
        assert isinstance(task, CopyTask)
        return build_moves(views(task.reads), views(task.writes), repetitions)

    def describe_form(self, item: RewrittenTask) -> object:
        """Equal for tasks whose kernels are prepared in the same way, but for where their operands lie."""
        task, bundle = item.task, self._bundle
        assert isinstance(task, KernelTask)
        operation = bundle.operations[task.operation]
        operands = []
        for region in (*task.reads, *task.writes):
            buffer = bundle.buffers[region.buffer]
            tensor = bundle.tensors[buffer.tensor]
            operands.append((tensor.dtype, tensor.order, buffer.role == "weight", buffer.block, region.block))
        attributes = repr(sorted(operation.kernel_attributes.items()))
        return operation.kernel, attributes, item.same_code, len(task.reads), *operands

    def leave_map(self, item: RewrittenTask) -> RewrittenTask:
        """A contraction without the map that is joined to it. It decides into how many parts both are cut: as in a plan
        of several processes, which join none, so that results are the same."""
        if item.then is None or not isinstance(item.task, KernelTask):
            return item
        count = len(self._bundle.operations[item.task.operation].inputs)
        task = msgspec.structs.replace(item.task, reads=item.task.reads[:count])
        return msgspec.structs.replace(item, task=task, then=None)

    def _make_invocation(self, operation: int, reads: Sequence[Region], writes: Sequence[Region]) -> Invocation[Array]:
        prepared, views = self._bundle.operations[operation], self._memory.views
        read_blocks, written_blocks = ([region.block for region in regions] for regions in (reads, writes))
        return Invocation(
            prepared.kernel, prepared.kernel_attributes, views(reads), views(writes), read_blocks, written_blocks
        )

    def _make_joined(self, task: KernelTask, then: JoinedMap) -> tuple[Invocation[Array], Invocation[Array]]:
        """A contraction, and the map that works in place on its result."""
        count = len(self._bundle.operations[task.operation].inputs)
        operands = list(task.reads[count:])
        operands.insert(then.operand, task.writes[0])
        return (
            self._make_invocation(task.operation, task.reads[:count], task.writes),
            self._make_invocation(then.operation, operands, task.writes),
        )


def _run_both(first: Invocation[Array], then: Invocation[Array], operand: int) -> Kernel:
    """A kernel and the map of its result, in the same scratch memory. The result lies there, too, where the map writes
    over another operand."""
    scratch, result = ScratchAllocator(), first.output
    further = [array for position, array in enumerate(then.inputs) if position != operand]
    apart = None
    if any(np.may_share_memory(array, result) for array in further):
        order = sorted(range(result.ndim), key=lambda axis: -result.strides[axis])
        apart = scratch.take(result.shape, result.dtype, order)

    def build(target: Array) -> tuple[Kernel, Kernel]:
        operands = [target if position == operand else array for position, array in enumerate(then.inputs)]
        return prepare(replace(first, outputs=[target])), prepare(replace(then, inputs=operands))

    kernels = build(result if apart is None else apart.stand_in())
    pad = scratch.take((max(kernel.scratch for kernel in kernels),), np.dtype(np.uint8))

    def bind(memory: Array) -> Run:
        bound = kernels if apart is None else build(apart.of(memory))
        return make_runner([(kernel.bind(pad.of(memory)), []) for kernel in bound])

    return Kernel(
        bind,
        scratch.size,
        sum(kernel.nanoseconds for kernel in kernels),
        tuple(operand for kernel in kernels for operand in kernel.prepacked),
        kernels[0].is_stream,
    )


def _do_nothing(_: Array) -> Run:
    return lambda: None
