"""The computation and the logical plan of a plan file, so that it is explained and checked by itself."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from einc.core.tensor import DType, TensorDesc
from einc.errors import OperatorError
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.logical.plan import Candidate, Choice, LogicalPlan, Tiles
from einc.ops.base import Operator
from einc.ops.reproducible import ReproducibleOperator
from einc.plan_report import read_report
from einc_runtime.plan.schema import Bundle, Operation, Tensor


def restore_graph(bundle: Bundle) -> Graph:
    """The computation that was planned.

    Raises OperatorError where this version of einc does not know an operator, or knows another by its name.
    """
    names = [tensor.name for tensor in bundle.tensors]
    nodes = tuple(
        Node(
            operation.name,
            _restore_operator(bundle, operation),
            tuple(names[t] for t in operation.inputs),
            tuple(names[t] for t in operation.outputs),
        )
        for operation in bundle.operations
    )
    tensors = tuple(GraphTensor(t.name, _make_desc(t), TensorKind(t.kind), t.stored) for t in bundle.tensors)
    return Graph(bundle.model, tensors, nodes, tuple(names[output.tensor] for output in bundle.outputs))


def restore_plan(bundle: Bundle) -> LogicalPlan:
    """The logical plan, with the candidates that this version offers, and what its report says of the choice.

    Raises OperatorError as `restore_graph` does, and PlanFault for a damaged report.
    """
    from einc.logical.candidates import restore_candidate

    graph, sites, report = restore_graph(bundle), len(bundle.devices), read_report(bundle)
    is_divided = report.microbatches * report.replicas > 1
    choices = []
    for node, operation in zip(graph.nodes, bundle.operations, strict=True):
        chosen = tuple(index.intervals for index in operation.indices)
        try:
            fits = prod(map(len, chosen)) * operation.replicas <= sites * operation.parts
            candidate = restore_candidate(node.operator, chosen, operation.replicas) if fits else None
            if candidate is not None and operation.parts > 1 and not is_divided:
                candidate = _restore_tiles(operation, candidate)
        except ValueError:
            candidate = None
        if candidate is None:
            raise OperatorError(f"operator {operation.name} is cut as this version of einc would not cut it")
        choices.append(Choice(node.name, candidate, operation.cost.repartition))
    return LogicalPlan(
        graph,
        sites,
        bundle.selector,
        tuple(choices),
        report.exact or False,
        report.cut_cost or 0,
        input_placement=bundle.input_placement,
    )


def _restore_tiles(operation: Operation, candidate: Candidate) -> Candidate | None:
    """The candidate with the tiles that the sites of its functions show; None where they are those of no tiles."""
    count = operation.parts
    for index, intervals in enumerate(candidate.intervals):
        tiled = replace(candidate, tiles=Tiles(index, count))
        first, *later = ([operation.functions[f].site for f in tiled.list_tile(tile)] for tile in range(count))
        if len(intervals) % count == 0 and len({*first}) == len(first) and all(sites == first for sites in later):
            return tiled
    return None


def _restore_operator(bundle: Bundle, operation: Operation) -> Operator:
    from einc.ops import registry

    inputs = tuple(_make_desc(bundle.tensors[t]) for t in operation.inputs)
    attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in operation.attributes.items()}
    try:
        operator = registry.restore(operation.family, inputs, attributes)
    except OperatorError as error:
        raise OperatorError(f"operator {operation.name} cannot be restored: {error.message}") from None
    if operator.outputs != tuple(_make_desc(bundle.tensors[t]) for t in operation.outputs):
        raise OperatorError(f"operator {operation.name} does not make the outputs that the plan says")
    return ReproducibleOperator(operator) if bundle.reproducible else operator


def _make_desc(tensor: Tensor) -> TensorDesc:
    return TensorDesc(tensor.dims, tensor.shape, DType(tensor.dtype))
