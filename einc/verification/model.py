"""Proves that a plan computes a model: its tensors, operations and outputs are those of the model's graph, all of them.

Together with the runtime's proof, which derives kernels, blocks and tasks from the operations, this leads from the text
of a model to the bytes of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from einc.graph.blocked_scans import block_scans, find_blocks
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind
from einc.ops.base import Attribute
from einc.verification.comparison import require_equal
from einc_runtime.errors import PlanFault
from einc_runtime.plan.schema import Bundle, Operation, Tensor

COMPILE_HINT = "compile the model again, or verify with the options of the model (-D, --train, --optimizer) that it had"


def verify_model(bundle: Bundle, graph: Graph) -> None:
    """Raises PlanFault at the first difference between a plan and a graph, which is fused as the compiler does it.

    Scans may be in blocks, in any number of them: then the parts are derived from the model's operators. The lines of
    the text that operations come from are not compared: the same model may stand in another text.
    """
    require_equal("model", bundle.model, graph.name, COMPILE_HINT)
    graph = block_scans(graph, find_blocks(graph, {tensor.name: tensor.shape for tensor in bundle.tensors}))
    names = [tensor.name for tensor in graph.tensors]
    _require_same_names("tensors", [tensor.name for tensor in bundle.tensors], names)
    uses = graph.consumers()
    for t, (tensor_of_plan, expected) in enumerate(zip(bundle.tensors, graph.tensors, strict=True)):
        readers = uses[expected.name]
        fan_in = readers[0][0].operator.fan_in(readers[0][1]) if readers else 1
        _verify_tensor(f"tensors[{t}] ('{expected.name}')", tensor_of_plan, expected, fan_in)
    nodes = {node.name: node for node in graph.nodes}
    _require_same_names("operations", sorted(operation.name for operation in bundle.operations), sorted(nodes))
    for o, operation in enumerate(bundle.operations):  # in any order that validation allows
        _verify_operation(f"operations[{o}] ('{operation.name}')", operation, nodes[operation.name], names)
    outputs = [names[output.tensor] for output in bundle.outputs]
    _require_same_names("outputs", outputs, list(graph.outputs))


def _verify_tensor(where: str, tensor: Tensor, expected: GraphTensor, fan_in: int) -> None:
    require_equal(f"{where}.kind", tensor.kind, expected.kind.value, COMPILE_HINT)
    require_equal(f"{where}.dtype", tensor.dtype, expected.desc.dtype.value, COMPILE_HINT)
    require_equal(f"{where}.dims", tensor.dims, expected.desc.dims, COMPILE_HINT)
    require_equal(f"{where}.shape", tensor.shape, expected.desc.shape, COMPILE_HINT)
    require_equal(f"{where}.stored", tensor.stored, expected.stored, COMPILE_HINT)
    filled = expected.kind is TensorKind.WEIGHT or expected.stored is not None
    require_equal(f"{where}.fan_in", tensor.fan_in, fan_in if filled else 1, COMPILE_HINT)


def _verify_operation(where: str, operation: Operation, node: Node, names: list[str]) -> None:
    operator = node.operator
    require_equal(f"{where}.family", operation.family, operator.family, COMPILE_HINT)
    require_equal(f"{where}.title", operation.title, operator.title, COMPILE_HINT)
    require_equal(f"{where}.inputs", tuple(names[t] for t in operation.inputs), node.inputs, COMPILE_HINT)
    require_equal(f"{where}.outputs", tuple(names[t] for t in operation.outputs), node.outputs, COMPILE_HINT)
    attributes: Mapping[str, Attribute] = operator.attributes
    _require_same_names(f"{where}.attributes", list(operation.attributes), sorted(attributes))
    for name, value in attributes.items():
        expected = list(value) if isinstance(value, tuple) else value
        require_equal(f"{where}.attributes['{name}']", operation.attributes[name], expected, COMPILE_HINT)


def _require_same_names(where: str, names: list[str], expected: list[str]) -> None:
    """Raises PlanFault that names what is lacking, what is too much, or what is out of place."""
    lacking = [name for name in expected if name not in set(names)]
    surplus = [name for name in names if name not in set(expected)]
    if lacking:
        raise PlanFault(f"the model has '{lacking[0]}', and the plan has not", where=where, hint=COMPILE_HINT)
    if surplus:
        raise PlanFault(f"the plan has '{surplus[0]}', and the model has not", where=where, hint=COMPILE_HINT)
    require_equal(where, names, expected, COMPILE_HINT)
