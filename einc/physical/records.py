"""The plan's records of a graph: its tensors and operations, and the whole plan file of a device program."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType

import msgspec

from einc.errors import InternalError, SourceSpan
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, find_updaters
from einc.logical.plan import Candidate, Choice, LogicalPlan
from einc.machines.load import format_machine
from einc.machines.model import Machine
from einc.ops.base import Attribute, MappedOperator, Operator
from einc.ops.wrapping import ReproducibleOperator, find_plain
from einc.physical.program import DeviceProgram
from einc.plan_report import BaselineTime, PipelineStage, PlanReport, encode_report, read_report
from einc_runtime.errors import PlanFault
from einc_runtime.plan import schema
from einc_runtime.plan.repetition import find_copied, unfold
from einc_runtime.plan.validation import validate_statements
from einc_runtime.text import replace_unprintable
from einc_runtime.version import VERSION

Order = tuple[int, ...]
"""The dimensions of a tensor from the slowest to the fastest in memory."""


def emit(
    program: DeviceProgram,
    machine: Machine,
    devices: tuple[int, ...],
    schedule: str,
    *,
    pinned: Mapping[str, str] = MappingProxyType({}),
    baselines: tuple[BaselineTime, ...] = (),
    unrestricted_ms: float | None = None,
) -> schema.Bundle:
    """The plan file of a device program; `devices[s]` is the number that site s of the plan has in the whole machine.

    `machine` is the machine of the plan's sites alone. `pinned` has the cut of every operator that a person named, and
    `baselines` what other plans take; `unrestricted_ms` is the time of a plan that need not be reproducible. Equal
    arguments give equal bundles.
    """
    plan = program.plan
    report = PlanReport(
        exact=plan.exact,
        cut_cost=plan.cut_cost,
        memory_limit=machine.memory_limit,
        unrestricted_ms=unrestricted_ms,
        baselines=baselines,
        contenders=plan.contenders,
        memory_points=plan.memory_points,
        stages=_describe_stages(plan),
        microbatches=1 if plan.division is None else plan.division.shape.microbatches,
        replicas=1 if plan.division is None else plan.division.shape.replicas,
        shapes=plan.shapes,
    )
    bundle = schema.Bundle(
        producer=f"einc {VERSION}",
        model=plan.graph.name,
        machine=machine.name,
        machine_file=format_machine(machine.keep_rates({operation.precision for operation in program.operations})),
        devices=devices,
        selector=plan.selector,
        schedule=schedule,
        total_cost=plan.total_cost,
        tensors=program.tensors,
        operations=program.operations,
        buffers=program.buffers,
        tasks=program.tasks,
        outputs=program.outputs,
        memory=program.memory,
        predicted_ms=program.predicted_ms,
        input_placement=plan.input_placement,
        reproducible=any(isinstance(node.operator, ReproducibleOperator) for node in plan.graph.nodes),
        repetition=program.repetition,
        report=encode_report(report),
    )
    return _name_pins(bundle, pinned) if pinned else bundle


def _name_pins(bundle: schema.Bundle, pinned: Mapping[str, str]) -> schema.Bundle:
    """The bundle whose operations say which cut a person named; the whole one where layers that are alike have unlike
    pins."""
    repetition = bundle.repetition
    if repetition is not None:
        copied = [find_copied(section, repetition.head) for section in repetition.operations]
        names = [operation.name for layer in copied for operation in bundle.operations[layer.first : layer.end]]
        pins = [*map(pinned.get, names)]
        if any(pins != list(map(pinned.get, copy.operations)) for copy in repetition.copies):
            bundle = unfold(bundle)
    operations = [msgspec.structs.replace(entry, pin=pinned.get(entry.name)) for entry in bundle.operations]
    return msgspec.structs.replace(bundle, operations=tuple(operations))


def _describe_stages(plan: LogicalPlan) -> tuple[PipelineStage, ...]:
    """The stages of a divided plan; none of any other."""
    if plan.division is None:
        return ()
    stage_of = plan.division.stage_of
    return tuple(
        PipelineStage(
            plan.graph.nodes[stage_of.index(stage)].name,
            stage_of.count(stage),
            tuple(groups[stage] for groups in plan.division.groups),
        )
        for stage in range(plan.division.shape.stages)
    )


def require_valid(bundle: schema.Bundle) -> schema.Bundle:
    """The plan file that was made, if readers will accept it.

    Raises InternalError otherwise: an operator may name a kernel that the runtime does not have, or that does not take
    its tensors and attributes.
    """
    try:
        read_report(bundle)
        validate_statements(bundle)  # the tasks were validated when they were made (`physical.verify`)
    except PlanFault as fault:
        position = re.match(r"operations\[(\d+)\]", fault.where or "")
        where = fault.where
        if position is not None:
            operation = bundle.operations[int(position[1])]
            where = f"operator {operation.name} ({operation.title}), {fault.where}"
        hint = fault.hint or "docs/operators.md says what an operator's kernel needs"
        raise InternalError(f"no runtime would read this plan: {fault.message}", where=where, hint=hint) from None
    return bundle


def make_tensor_records(graph: Graph) -> tuple[schema.Tensor, ...]:
    """The record of every tensor of a graph, in its order."""
    consumers, orders = graph.consumers(), find_memory_orders(graph)

    def fan_in(tensor: GraphTensor) -> int:
        """The fan-in of the first operator that reads a weight."""
        readers = consumers[tensor.name]
        return readers[0][0].operator.fan_in(readers[0][1]) if readers else 1

    return tuple(
        schema.Tensor(
            tensor.name,
            tensor.desc.dims,
            tensor.desc.shape,
            tensor.desc.dtype.value,
            tensor.kind.value,
            tensor.stored,
            fan_in(tensor) if tensor.kind is TensorKind.WEIGHT or tensor.stored is not None else 1,
            orders.get(tensor.name, ()),
        )
        for tensor in graph.tensors
    )


class OperationRecorder:
    """Makes the records of the operators of one graph. Plans of it that share candidates share what follows from them.

    What is remembered is keyed by the identity of candidates: hashing them would visit every block.
    """

    def __init__(self) -> None:
        self._functions: dict[tuple[Operator, int], tuple[schema.Function, ...]] = {}  # layers repeat their operators
        self._records: dict[tuple[str, int, int], schema.Operation] = {}
        self._tensors: tuple[Graph, tuple[schema.Tensor, ...]] | None = None
        self._seen: dict[int, Candidate] = {}  # keeps them alive, so that no other one gets the identity of one

    def record_tensors(self, graph: Graph) -> tuple[schema.Tensor, ...]:
        """The record of every tensor of a graph, in its order; most plans have the nodes in the same order."""
        if self._tensors is None or self._tensors[0] is not graph:
            self._tensors = graph, make_tensor_records(graph)
        return self._tensors[1]

    def record(self, plan: LogicalPlan) -> tuple[schema.Operation, ...]:
        """The record of every operator: function specification i runs at site i, and nothing is brought yet."""
        tensors = {tensor.name: position for position, tensor in enumerate(plan.graph.tensors)}
        return tuple(
            self._record(node, choice, tensors) for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
        )

    def _record(self, node: Node, choice: Choice, tensors: Mapping[str, int]) -> schema.Operation:
        number = id(self._seen.setdefault(id(choice.candidate), choice.candidate))
        key = node.name, number, choice.repartition
        if key not in self._records:
            same = node.operator, number
            if same not in self._functions:
                self._functions[same] = _make_functions(node.operator, choice.candidate)
            self._records[key] = _make_operation(node, choice, self._functions[same], tensors)
        return self._records[key]


def place_operation(
    operation: schema.Operation, placement: Mapping[int, int], exchanges: Sequence[schema.Exchange | None]
) -> schema.Operation:
    """The record with function specification f at site `placement[f]`, and the exchanges that bring the inputs of its
    parts."""
    functions = tuple(
        [
            function if function.site == placement[f] else msgspec.structs.replace(function, site=placement[f])
            for f, function in enumerate(operation.functions)
        ]
    )
    first, *later = exchanges
    parts = len(exchanges)
    return msgspec.structs.replace(operation, functions=functions, exchange=first, parts=parts, later=trim_later(later))


def trim_later(later: Sequence[schema.Exchange | None]) -> tuple[schema.Exchange | None, ...]:
    """The exchanges of the parts after the first; none at all where nothing moves for any of them."""
    return () if all(exchange is None for exchange in later) else tuple(later)


def _make_operation(
    node: Node, choice: Choice, functions: tuple[schema.Function, ...], tensors: Mapping[str, int]
) -> schema.Operation:
    operator, candidate = node.operator, choice.candidate
    return schema.Operation(
        name=node.name,
        title=operator.title,
        family=find_plain(operator).family,
        attributes=_convert_attributes(operator.attributes),
        source=format_source(node.span),
        inputs=tuple(tensors[name] for name in node.inputs),
        outputs=tuple(tensors[name] for name in node.outputs),
        aggregations=tuple(operator.aggregations),  # type: ignore[arg-type]  # a name that no reader knows is refused
        joint_aggregations=operator.joint_aggregations,
        kernel=operator.kernel.name,
        kernel_attributes=_convert_attributes(dict(operator.kernel.attributes)),
        indices=tuple(
            schema.Index(index.name, index.extent, index.cuts, intervals)
            for index, intervals in zip(operator.indices, candidate.intervals, strict=True)
        ),
        cost=schema.Cost(choice.repartition, candidate.join, candidate.aggregation),
        functions=functions,
        exchange=None,
        precision=operator.precision,  # type: ignore[arg-type]  # as for aggregations
        replicas=candidate.replicas,
    )


def _make_functions(operator: Operator, candidate: Candidate) -> tuple[schema.Function, ...]:
    functions = candidate.spec.functions
    once = [
        (spec.inputs, spec.outputs, operator.flops(spec), operator.traffic(spec), operator.work(spec))
        for spec in functions
    ]
    return tuple(schema.Function(site, *fields) for site, fields in enumerate(once * candidate.replicas))


def _convert_attributes(attributes: Mapping[str, Attribute]) -> dict[str, schema.Attribute]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(attributes.items())}


def format_source(span: SourceSpan | None) -> str | None:
    """File and line, without the directory: a plan does not depend on where it was compiled."""
    if span is None:
        return None
    return f"{replace_unprintable(PurePath(span.file).name)}:{span.line}"  # plans have printable names only


def find_memory_orders(graph: Graph) -> Mapping[str, Order]:
    """The tensors whose dimensions lie in memory in another order than the one in which they are declared.

    An operator may want another order, so that its kernel needs no copy of its operands: attention, for example, takes
    queries by heads, and projections to all heads put them out by tokens. Operators that only map elements pass such a
    request on from their outputs to their inputs, and the other way round. Of several requests for one tensor the first
    holds. Tensors that are loaded or saved keep the declared order, and so do those that are written over a state.
    """
    free = {tensor.name for tensor in graph.tensors if tensor.kind is TensorKind.VALUE} - set(graph.outputs)
    free -= {graph.nodes[n].outputs[0] for n in find_updaters(graph).values()}
    orders: dict[str, Order] = {}
    equally_mapped: dict[str, list[str]] = {name: [] for name in free}
    for node in graph.nodes:
        for name, order in zip((*node.inputs, *node.outputs), node.operator.memory_orders, strict=True):
            if order is not None and name in free:
                orders.setdefault(name, order)
        for input_name, neighbour in _pair_mapped_alike(node):
            if {input_name, neighbour} <= free:
                equally_mapped[input_name].append(neighbour)
                equally_mapped[neighbour].append(input_name)
    waiting = list(orders)
    while waiting:
        name = waiting.pop()
        for neighbour in equally_mapped[name]:
            if neighbour not in orders:
                orders[neighbour] = orders[name]
                waiting.append(neighbour)
    return orders


def _pair_mapped_alike(node: Node) -> list[tuple[str, str]]:
    """Pairs of an input and an output whose dimensions follow the same indices, one by one."""
    operator = find_plain(node.operator)
    if not isinstance(operator, MappedOperator):
        return []
    inputs = zip(node.inputs, operator.input_maps, strict=True)
    outputs = zip(node.outputs, operator.output_maps, strict=True)
    return [
        (input_name, output_name)
        for (input_name, input_maps), (output_name, maps) in itertools.product(inputs, outputs)
        if input_maps == maps
    ]
