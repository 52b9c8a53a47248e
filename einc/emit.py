"""From a device program to a plan bundle: the only place that knows both vocabularies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from einc.core.tensor import TensorType
from einc.errors import SourceSpan
from einc.exchange.language.printer import print_program
from einc.graph.graph import Graph, GraphTensor, Node
from einc.logical.plan import Choice
from einc.machines.load import machine_json
from einc.machines.model import Machine
from einc.ops.base import Attribute
from einc.physical.forecast import predicted_ms
from einc.physical.layout import memory_orders
from einc.physical.program import Buffer, DeviceProgram, Exchange, Output, Region, Task, TaskKind
from einc_runtime.plan import schema as b
from einc_runtime.text import replace_unprintable
from einc_runtime.version import VERSION


def emit(program: DeviceProgram, machine: Machine, devices: tuple[int, ...], schedule: str) -> b.Bundle:
    """The plan of a device program; `devices[s]` is the number that site s of the plan has in the whole machine.

    `machine` is the machine of the plan's sites alone. Equal arguments give equal bundles.
    """
    plan = program.plan
    tensors = {tensor.name: position for position, tensor in enumerate(plan.graph.tensors)}
    operations = {node.name: position for position, node in enumerate(plan.graph.nodes)}
    blocks = _Blocks()
    return b.Bundle(
        producer=f"einc {VERSION}",
        model=plan.graph.name,
        machine=machine.name,
        machine_file=machine_json(machine),
        devices=devices,
        selector=plan.selector,
        schedule=schedule,
        exact=plan.exact,
        total_cost=plan.total_cost,
        cut_cost=plan.cut_cost,
        tensors=_tensors(plan.graph),
        operations=tuple(
            _operation(node, choice, sites, exchange, tensors, blocks)
            for node, choice, sites, exchange in zip(
                plan.graph.nodes, plan.choices, program.sites, program.exchanges, strict=True
            )
        ),
        buffers=tuple(
            _buffer(buffer, offset, tensors, blocks)
            for buffer, offset in zip(program.buffers, program.offsets, strict=True)
        ),
        tasks=tuple(_task(task, operations, blocks) for task in program.tasks),
        outputs=tuple(_output(output, tensors, blocks) for output in program.outputs),
        memory=program.memory,
        predicted_ms=predicted_ms(program, machine),
    )


class _Blocks:
    """The bundle's block for a tensor type, one object for equal ones: a plan repeats each many times."""

    def __init__(self) -> None:
        self._known: dict[TensorType, b.Block] = {}

    def __call__(self, block: TensorType) -> b.Block:
        known = self._known.get(block)
        if known is None:
            known = self._known[block] = b.Block(block.lower, block.upper)
        return known

    def region(self, region: Region) -> b.Region:
        return b.Region(region.buffer, self(region.block))

    def regions(self, regions: Sequence[Region]) -> tuple[b.Region, ...]:
        return tuple(map(self.region, regions))


def _tensors(graph: Graph) -> tuple[b.Tensor, ...]:
    consumers, orders = graph.consumers(), memory_orders(graph)

    def fan_in(tensor: GraphTensor) -> int:
        """By the first operator that reads it."""
        readers = consumers[tensor.name]
        return readers[0][0].operator.fan_in(readers[0][1]) if readers else 1

    return tuple(
        b.Tensor(
            tensor.name,
            tensor.desc.dims,
            tensor.desc.shape,
            tensor.desc.dtype.value,
            tensor.kind.value,
            tensor.stored,
            fan_in(tensor) if tensor.kind.value == "weight" else 1,
            orders.get(tensor.name, ()),
        )
        for tensor in graph.tensors
    )


def _operation(
    node: Node,
    choice: Choice,
    sites: Sequence[int],
    exchange: Exchange | None,
    tensors: Mapping[str, int],
    blocks: _Blocks,
) -> b.Operation:
    operator, candidate = node.operator, choice.candidate
    return b.Operation(
        name=node.name,
        title=operator.title,
        family=operator.family,
        attributes=_attributes(operator.attributes),
        source=_source(node.span),
        inputs=tuple(tensors[name] for name in node.inputs),
        outputs=tuple(tensors[name] for name in node.outputs),
        aggregations=tuple(operator.aggregations),  # type: ignore[arg-type]  # a name that no reader knows is refused
        merges=tuple(b.Merge(merge.outputs, merge.dims, merge.whole) for merge in operator.merges),
        kernel=operator.kernel.name,
        kernel_attributes=_attributes(dict(operator.kernel.attributes)),
        indices=tuple(
            b.Index(index.name, index.extent, index.cuts, intervals)
            for index, intervals in zip(operator.indices, candidate.intervals, strict=True)
        ),
        cost=b.Cost(choice.repartition, candidate.join, candidate.aggregation),
        functions=tuple(
            b.Function(
                site,
                tuple(map(blocks, function.inputs)),
                tuple(map(blocks, function.outputs)),
                operator.flops(function),
                operator.traffic(function),
            )
            for site, function in zip(sites, candidate.spec.functions, strict=True)
        ),
        exchange=_exchange(exchange),
        precision=operator.precision,  # type: ignore[arg-type]  # as for aggregations
    )


def _attributes(attributes: Mapping[str, Attribute]) -> dict[str, b.Attribute]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(attributes.items())}


def _source(span: SourceSpan | None) -> str | None:
    """File and line, without the directory: a plan does not depend on where it was compiled."""
    if span is None:
        return None
    name = replace_unprintable(PurePath(span.file).name)  # plans have printable names only
    return f"{name}:{span.line}"


def _exchange(exchange: Exchange | None) -> b.Exchange | None:
    if exchange is None:
        return None
    return b.Exchange(
        print_program(exchange.program),
        exchange.naive,
        exchange.completion_ms,
        exchange.naive_ms,
        exchange.bound_ms,
        exchange.bound_free_ms,
        exchange.bound_by,
        dict(exchange.splits),
    )


def _buffer(buffer: Buffer, offset: int, tensors: Mapping[str, int], blocks: _Blocks) -> b.Buffer:
    return b.Buffer(buffer.site, offset, tensors[buffer.tensor], blocks(buffer.block), buffer.role.value)


def _output(output: Output, tensors: Mapping[str, int], blocks: _Blocks) -> b.Output:
    return b.Output(tensors[output.tensor], blocks.regions(output.regions), _exchange(output.exchange))


def _task(task: Task, operations: Mapping[str, int], blocks: _Blocks) -> b.AnyTask:
    site, node, after = task.site, task.node, task.after
    match task.kind:
        case TaskKind.KERNEL:
            assert task.function is not None
            reads, writes = blocks.regions(task.reads), blocks.regions(task.writes)
            return b.KernelTask(site, node, after, operations[node], task.function, reads, writes)
        case TaskKind.TRANSFER:
            return b.TransferTask(site, node, after, blocks.region(task.reads[0]), blocks.region(task.writes[0]))
        case TaskKind.AGGREGATE:
            reads, writes = blocks.regions(task.reads), blocks.regions(task.writes)
            return b.AggregateTask(site, node, after, task.aggregation, reads, writes)  # type: ignore[arg-type]
        case TaskKind.COPY:
            return b.CopyTask(site, node, after, blocks.regions(task.reads), blocks.regions(task.writes))
        case TaskKind.FENCE:
            return b.FenceTask(site, node, after)
