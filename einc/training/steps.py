"""A training step: a model, the gradients of its loss, and what an optimizer makes of weights and gradients.

Weights, and what the optimizer keeps of them, are states: a step reads them, and at the end writes over them, in place.
What it writes is `NAME.next` in the graph, which is what `NAME` is in the next step.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einc.core.tensor import DType, TensorDesc
from einc.errors import UsageError
from einc.frontend.expressions import TensorValue
from einc.frontend.single_equation import add_library_call
from einc.graph.builder import GraphBuilder
from einc.graph.graph import Graph, GraphTensor, Node, TensorKind, verify_graph
from einc.ops.equation import build_assignment
from einc.training.control import NEXT, StepControl, cast
from einc.training.gradients import add_gradients, choose_weights
from einc.training.precision import mix_precision
from einc.training.repeated_nodes import compute_once
from einc.training.tied_weights import copy_graph, merge_tied_weights
from einc_runtime.text import did_you_mean

LEARNING_RATE, STEP = "learning_rate", "step"
"""The inputs of a step, both of f32: the learning rate, and the number of the step, from 1."""
RAW = "next."
"""How the names of next values begin before they are written over states; no name in a model text has a dot."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A definition of the library: the names of what it keeps of each weight, and whether it counts steps."""

    states: tuple[str, ...]
    counts: bool = False


OPTIMIZERS = {
    "sgd": Optimizer(("velocity",)),
    "adamw": Optimizer(("mean", "square"), counts=True),
    "lion": Optimizer(("mean",)),
}


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What a step does beside its optimizer: the largest norm of all gradients; a type of `precision.PRECISIONS` that
    products have; and whether gradients are added up over several runs, of which the last changes the weights. Weights
    decay by `decay`, those whose names match a pattern of `undecayed` not at all; without it as the optimizer says."""

    clip: float | None = None
    precision: str | None = None
    accumulates: bool = False
    decay: float | None = None
    undecayed: tuple[str, ...] = ()

    def find_decay(self, weight: str) -> float | None:
        """By which part of the learning rate a weight decays in a step; None where the optimizer says it."""
        if any(fnmatch.fnmatchcase(weight, pattern) for pattern in self.undecayed):
            return 0.0
        return self.decay


def derive_training_step(
    graph: Graph, loss: str, optimizer: str, wrt: Sequence[str] | None = None, options: StepOptions | None = None
) -> Graph:
    """The graph with the outputs `loss` and, for each weight w of `wrt` (by default all that the loss depends on),
    `w.next`, and `w.STATE.next` for each state of the optimizer, which the input `w.STATE` has before.

    With `clip`, gradients are scaled so that the norm of all together is at most that. With a `precision`, weights are
    f32; with that of f16, the loss is scaled, and a step whose gradients are infinite changes nothing but the scale.
    Raises what `derive_gradients` raises, and UsageError for an optimizer that does not exist and for a loss of f16.
    """
    options = options or StepOptions()
    if optimizer not in OPTIMIZERS:
        hint = did_you_mean(optimizer, OPTIMIZERS) or f"the optimizers are {', '.join(OPTIMIZERS)}"
        raise UsageError(f"there is no optimizer '{optimizer:.80}'", hint=hint)
    graph, wrt = merge_tied_weights(graph, wrt)
    chosen = choose_weights(graph, loss, wrt)
    for pattern in options.undecayed:
        if not fnmatch.filter(chosen, pattern):
            shown = f"{', '.join(chosen[:5])}{', ...' if len(chosen) > 5 else ''}"
            raise UsageError(f"no weight has a name like '{pattern:.80}'", hint=f"the weights are {shown}")
    if options.precision is not None:
        graph = mix_precision(graph, options.precision, chosen)
    builder = copy_graph(graph)
    builder.save(loss)
    control = StepControl(builder, loss, options.precision == "f16", options.accumulates)
    gradients = add_gradients(builder, loss, chosen, control.seed)
    control.add_up(gradients)
    control.scale_gradients(gradients, options.clip)
    scalar = TensorDesc((), (), DType.F32)
    scalars = [builder.input(builder.unique_name(LEARNING_RATE), scalar)]
    if OPTIMIZERS[optimizer].counts:
        scalars.append(control.count_steps() or builder.input(builder.unique_name(STEP), scalar))
    for name in chosen:
        _update(builder, control, optimizer, name, gradients[name], scalars, options.find_decay(name))
    control.finish()
    derived = _keep_in_place(compute_once(builder.build()), {NEXT.format(name): name for name in control.kept})
    verify_graph(derived)
    return derived


def _update(
    builder: GraphBuilder,
    control: StepControl,
    optimizer: str,
    weight: str,
    gradient: str,
    scalars: Sequence[str],
    decay: float | None,
) -> None:
    """Adds the new value of a weight, and what is kept of it."""
    desc = builder.desc(weight)
    states = [builder.input(f"{weight}.{state}", desc) for state in OPTIMIZERS[optimizer].states]
    names = [weight, gradient, *states, *(cast(builder, name, desc.dtype) for name in scalars)]
    arguments = [TensorValue(name, builder.desc(name)) for name in names]
    attributes = {} if decay is None else {"decay": decay}
    results = add_library_call(optimizer, arguments, attributes, builder, [NEXT.format(weight)])
    for name, result in zip((weight, *states), results, strict=True):
        control.keep(name, control.choose(result, name))


def _keep_in_place(graph: Graph, states: Mapping[str, str]) -> Graph:
    """The graph with weights and inputs as states, which `states` has by the names of what they are next.

    Each is written over as soon as its next value is computed and nothing reads it any more. What reads the next value
    afterwards reads it there.
    """
    last = {name: n for n, node in enumerate(graph.nodes) for name in node.inputs}
    ends: dict[int, list[str]] = {}
    for value, state in states.items():
        ends.setdefault(max(graph.positions[value], last.get(state, 0)), []).append(value)
    table = graph.tensor_table()
    free = (f"{RAW}{number}" for number in itertools.count() if f"{RAW}{number}" not in table)
    names = dict(zip(states, free, strict=False))  # of next values, until they are written over the state
    tensors: list[GraphTensor] = []
    for tensor in graph.tensors:
        if tensor.name in names:
            tensors.append(replace(tensor, name=names[tensor.name]))
        elif tensor.name in states.values():
            stored = (tensor.stored or tensor.name) if tensor.kind is TensorKind.WEIGHT else None
            tensor = replace(tensor, kind=TensorKind.STATE, stored=stored)
        tensors.append(tensor)
    nodes: list[Node] = []
    for n, node in enumerate(graph.nodes):
        inputs = tuple(names.get(name, name) for name in node.inputs)
        outputs = tuple(names.get(name, name) for name in node.outputs)
        nodes.append(replace(node, name=outputs[0], inputs=inputs, outputs=outputs))
        for value in ends.get(n, ()):
            update = build_assignment(table[value].desc)
            nodes.append(Node(value, update, (states[value], names.pop(value)), (value,), node.span))
    return replace(graph, tensors=tuple(tensors), nodes=tuple(nodes))
