"""What options of a compilation make of a model and its loss: gradients, or a training step."""

from __future__ import annotations

from einc.errors import UsageError
from einc.graph.graph import Graph
from einc.options import AUTO, CompileOptions
from einc.training.gradients import derive_gradients
from einc.training.recomputation import read_level, recompute
from einc.training.steps import StepOptions, derive_training_step


def derive_training(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with its gradients, or its training step. Raises ModelError for an operator that has none, UsageError
    for options that contradict each other."""
    if options.train is None:
        raise UsageError("gradients are those of a loss", hint="name the output that is the loss: --train LOSS")
    if options.step is not None:
        raise UsageError("a decode step has no gradients", hint="leave out --step or --train")
    if options.optimizer is not None:
        step_options = StepOptions(
            options.clip, options.precision, options.accumulate, options.decay, options.undecayed
        )
        derived = derive_training_step(graph, options.train, options.optimizer, options.gradients, step_options)
    elif options.changes_steps:
        message = "gradients are clipped and added up, and weights decay or are kept in f32, for an optimizer"
        raise UsageError(message, hint="name it: --optimizer adamw")
    else:
        derived = derive_gradients(graph, options.train, options.gradients)
    if options.recompute == AUTO:
        return derived
    return recompute(derived, options.train, *read_level(options.recompute))
