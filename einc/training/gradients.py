"""The gradients of a scalar with respect to weights, as further operators of the same graph.

Reverse mode: nodes are visited from the last to the first, and each adds to the gradients of its inputs what follows
from those of its outputs. The rule of each family of operators is written in operators of the language
(`einc.training.rules`), so that the result is a graph like any other, which is cut, proved and run as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from einc.errors import MAX_FINDINGS, Diagnostic, ModelError, OperatorError, UsageError
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, GraphTensor, TensorKind, verify_graph
from einc.ops.equation import build_equation
from einc.ops.scalar import ProgramBuilder
from einc.training.repeated_nodes import compute_once
from einc.training.rules import find_rule
from einc.training.tape import NodeGradient, Tape
from einc.training.tied_weights import copy_graph, merge_tied_weights
from einc_runtime.plan.scalar_programs import ScalarInput
from einc_runtime.text import did_you_mean

GRADIENT = "{}.gradient"
"""The name of the output that has the gradient of a tensor."""


def derive_gradients(graph: Graph, loss: str, wrt: Sequence[str] | None = None) -> Graph:
    """The graph with the outputs `loss` and, for each tensor w of `wrt`, `w.gradient`.

    `loss` is an output of the graph, one float. `wrt` are inputs or weights of floats, by default all weights on which
    the loss depends. Raises UsageError for names that are none of these, and ModelError with every operator that has no
    gradient.
    """
    graph, wrt = merge_tied_weights(graph, wrt)
    chosen = choose_weights(graph, loss, wrt)
    builder = copy_graph(graph)
    gradients = add_gradients(builder, loss, chosen)
    builder.save(loss)
    for name in chosen:
        builder.save(builder.rename(gradients[name], GRADIENT.format(name)))
    derived = compute_once(builder.build())
    verify_graph(derived)
    return derived


def add_gradients(builder: GraphBuilder, loss: str, wrt: Sequence[str], seed: str | None = None) -> dict[str, str]:
    """Adds the gradients of a loss to a graph under construction. Returns their names by those of `wrt`, which
    `choose_tensors` has checked. `seed` is the gradient of the loss itself, by default 1. Raises ModelError
    with every operator that has no gradient."""
    graph = builder.build()
    tape = Tape(builder, {})
    tape.accumulate(loss, _add_one(builder, loss) if seed is None else seed)
    reached = _find_reached(graph, wrt)
    table = graph.tensor_table()
    findings: list[Diagnostic] = []
    for node in reversed(graph.nodes):
        outputs = tuple(tape.gradients.get(name) for name in node.outputs)
        has_gradient = tuple(name in reached and table[name].desc.dtype.is_float for name in node.inputs)
        if not any(has_gradient) or not any(outputs):
            continue
        try:
            find_rule(node.operator)(NodeGradient(tape, node, outputs, has_gradient))
        except OperatorError as fault:
            message = f"no gradient can be derived: '{node.name}' ({node.operator.title}) {fault.message}"
            findings.append(Diagnostic(message, node.span, fault.hint))
    if findings:
        raise ModelError(findings[:MAX_FINDINGS])
    for name in wrt:
        if name not in tape.gradients:
            raise UsageError(f"'{loss}' depends on '{name}' only through integers, comparisons or steps: no gradient")
    return {name: tape.gradients[name] for name in wrt}


def choose_weights(graph: Graph, loss: str, wrt: Sequence[str] | None) -> list[str]:
    """As `choose_tensors`, for a loss that must be an output of the graph."""
    if loss not in graph.outputs:
        hint = did_you_mean(loss, graph.outputs) or f"the outputs of {graph.name} are {', '.join(graph.outputs)[:200]}"
        raise UsageError(f"{graph.name} has no output '{loss:.80}' that could be the loss", hint=hint)
    return choose_tensors(graph, loss, wrt)


def choose_tensors(graph: Graph, loss: str, wrt: Sequence[str] | None) -> list[str]:
    """The names of what gradients are of: `wrt`, or all weights of floats on which a loss depends. Raises UsageError
    for a loss that is not one float, and for what has no gradient."""
    table = graph.tensor_table()
    desc = table[loss].desc
    if desc.shape or not desc.dtype.is_float:
        hint = f'make it one number: mean({loss}, "dimension", ...)'
        raise UsageError(f"the loss '{loss}' is {desc}, expected one float", hint=hint)
    needed = find_needed(graph, loss)
    if wrt is None:
        weights = [tensor for tensor in graph.tensors if tensor.kind is TensorKind.WEIGHT and tensor.name in needed]
        return [tensor.name for tensor in weights if tensor.desc.dtype.is_float]
    declared = [tensor.name for tensor in graph.tensors if tensor.kind is not TensorKind.VALUE]
    for name in wrt:
        _check(name, table.get(name), declared, needed, loss)
    return list(dict.fromkeys(wrt))


def _check(name: str, tensor: GraphTensor | None, declared: Sequence[str], needed: Iterable[str], loss: str) -> None:
    if tensor is None or tensor.kind is TensorKind.VALUE:
        hint = did_you_mean(name, declared) or "gradients are those of inputs and weights"
        raise UsageError(f"there is no input or weight '{name:.80}'", hint=hint)
    if not tensor.desc.dtype.is_float:
        raise UsageError(f"'{name}' is {tensor.desc}, and only floats have gradients")
    if name not in needed:
        raise UsageError(f"'{loss}' does not depend on '{name}', so that it has no gradient")


def find_needed(graph: Graph, name: str) -> set[str]:
    """All tensors from which a tensor is computed."""
    needed = {name}
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
    return needed


def _find_reached(graph: Graph, names: Iterable[str]) -> set[str]:
    """All tensors that are computed from some tensors, and these."""
    reached = set(names)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    return reached


def _add_one(builder: GraphBuilder, loss: str) -> str:
    """The gradient of the loss itself: 1, whatever the loss is."""
    desc = builder.desc(loss)
    steps = ProgramBuilder(1)
    same, differs = (steps.add(name, ScalarInput(0), ScalarInput(0)) for name in ("eq", "ne"))
    unit = steps.add(f"cast:{desc.dtype.value}", steps.add("or", same, differs))
    operator = build_equation([(desc, ())], [], steps.program(unit), None)
    return builder.apply(operator, (loss,), (GRADIENT.format(loss),))[0]
