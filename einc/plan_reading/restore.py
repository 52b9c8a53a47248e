"""The computation and the logical plan of a plan file, so that it is explained and checked by itself.

What a plan should compute follows from it: its operators' meaning on whole arrays, and how far roundings may move that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from einc.core.tensor import Array, DType, TensorDesc
from einc.errors import OperatorError
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.logical.plan import Candidate, Choice, LogicalPlan, Tiles
from einc.ops.base import Operator
from einc.ops.wrapping import ReproducibleOperator
from einc.plan_report import read_report
from einc_runtime.plan.schema import Bundle, Operation, Tensor
from einc_runtime.plan.states import STATE


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


DRAWS = 3
"""Random changes that are tried to see how far results move."""


def compute_outputs(
    bundle: Bundle, loaded: Mapping[str, Array], change: Callable[[Array], Array] | None = None
) -> dict[str, Array]:
    """The outputs of the unpartitioned computation, from the operators' meaning on whole arrays.

    `loaded` holds every input and weight; states that are not in it are zeros. The plan's cuts play no part, so that a
    run can be compared with the result. With `change`, every array is changed by it before operators read it.
    """
    import numpy as np

    from einc_runtime.dtypes import storage_dtype

    graph = restore_graph(bundle)
    uses = {name: len(readers) for name, readers in graph.consumers().items()}
    states = [tensor for tensor in bundle.tensors if tensor.kind == STATE]
    values = {state.name: np.zeros(state.shape, storage_dtype(state.dtype)) for state in states} | dict(loaded)
    if change is not None:
        values = {name: change(array) for name, array in values.items()}
    for node in graph.nodes:
        results = node.operator.reference(*(values[name] for name in node.inputs))
        changed = results if change is None else map(change, results)
        values.update(zip(node.outputs, changed, strict=True))
        for name in node.inputs:  # a value is dropped after its last use
            uses[name] -= 1
            if uses[name] == 0 and name not in graph.outputs:
                values.pop(name, None)
    return {name: values[name] for name in graph.outputs}


def measure_movements(bundle: Bundle, loaded: Mapping[str, Array], rounding: float) -> dict[str, float]:
    """How far each floating output moves if every value on the way to it is changed at random by up to `rounding` of
    itself: the most of a few draws. That says what roundings may do to a sum whose terms cancel."""
    import numpy as np

    exact = compute_outputs(bundle, loaded)
    moved = dict.fromkeys(exact, 0.0)
    for seed in range(DRAWS):
        for name, array in compute_outputs(bundle, loaded, _make_shaking(seed, rounding)).items():
            if array.dtype.kind not in "iub":
                distance = np.abs(array.astype(np.float64) - exact[name].astype(np.float64))
                moved[name] = max(moved[name], float(np.max(distance, initial=0.0, where=np.isfinite(distance))))
    return moved


def _make_shaking(seed: int, rounding: float) -> Callable[[Array], Array]:
    import numpy as np

    rng = np.random.default_rng(seed)

    def shake(array: Array) -> Array:
        if array.dtype.kind in "iub":
            return array
        changed: Array = array.astype(np.float64) * (1 + rounding * rng.uniform(-1, 1, array.shape))
        return changed

    return shake
