"""`einc verify`: the runtime's proof, the figures of the plan, and that it computes a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from einc.cli.files import read_model_text
from einc.cli.options import PARAM_VALUE, step_option
from einc.cli.training_options import training_options
from einc.errors import ModelError
from einc.options import AUTO, CompileOptions
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.verify import Ranks, assignment_option, ranks_option, verify_plan, weights_option

if TYPE_CHECKING:
    from einc.graph.decode_step import StepRequest
    from einc.graph.graph import Graph
    from einc_runtime.plan.schema import Bundle

_UNTRIED = "by computing them, that steps are those of the model, which is too large (a smaller preset or -D shows it)"
_NO_MODEL = "that the plan computes a certain model (--model MODEL.ein proves it)"


@command(
    "verify",
    "einc verify ffn.bin",
    "einc verify ffn.bin --model ffn.ein -D tokens=1000",
    "einc verify step.bin --model llama.ein --step tokens=1",
    "einc verify llama.bin --model llama.ein --weights weights/",
    short_help="Prove a plan: its tasks, its figures, and that it computes a model.",
)
@click.argument("plan", metavar="PLAN")
@click.option("--model", metavar="MODEL.ein", help="Prove that the plan computes this model.")
@click.option("-D", "definitions", type=PARAM_VALUE, multiple=True, help="As the plan was compiled, with --model.")
@click.option("--preset", metavar="NAME", help="As the plan was compiled, with --model.")
@click.option("--dtype", metavar="DTYPE", help="As the plan was compiled, with --model.")
@step_option
@training_options
@weights_option
@ranks_option
@assignment_option
@json_option
def verify_command(
    plan: str,
    model: str | None,
    definitions: tuple[tuple[str, str], ...],
    preset: str | None,
    dtype: str | None,
    step: StepRequest | None,
    train: str | None,
    gradients: tuple[str, ...] | None,
    optimizer: str | None,
    clip: float | None,
    precision: str | None,
    accumulate: bool,
    decay: float | None,
    undecayed: tuple[str, ...],
    recompute: str | None,
    weights: tuple[str, ...],
    ranks: bool,
    sites_per_rank: tuple[int, ...] | int | None,
    as_json: bool,
) -> None:
    """Prove a plan: its tasks, its figures, and that it computes a model.

    Kernels, their attributes and their blocks are derived again from every operation and its cut. Every task is
    followed symbolically: each kernel must receive exactly its fully aggregated blocks, no two tasks may race, and the
    outputs must be complete. Costs, times, bounds and the texts of exchanges are computed again. With
    --model, the plan must have the operations and tensors of the model, no more and no less; with --step, those of the
    decode step that is derived from it. Steps of a small model are also computed, with random numbers, and compared
    with what the model computes of all tokens. The last lines say what is not proved.
    """
    if model is None and (definitions or preset is not None or dtype is not None or step or train):
        raise click.UsageError("-D, --preset, --dtype, --step and --train say how a model is read: give --model, too")
    options = CompileOptions(
        definitions=definitions,
        preset=preset,
        dtype=dtype,
        step=step,
        train=train,
        gradients=gradients,
        optimizer=optimizer,
        clip=clip,
        precision=precision,
        accumulate=accumulate,
        decay=decay,
        undecayed=undecayed,
        recompute=recompute or AUTO,
    )
    reading = None if model is None else ModelReading(read_model_text(model), model, options)
    graph = None if reading is None else reading.build()

    def prove_more(folded: Bundle, phase: Callable[[str], None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from einc.training.recomputation import AGAIN
        from einc.verification.figures import FIGURES_CLAIM, verify_figures
        from einc.verification.model import verify_model
        from einc_runtime.plan.repetition import unfold

        phase("computing its figures again")
        unproved, bundle = verify_figures(folded), unfold(folded)
        if reading is None or graph is None:
            return (FIGURES_CLAIM,), (*unproved, _NO_MODEL)
        phase("comparing it with the model")
        again = sum(operation.name.endswith(AGAIN) for operation in bundle.operations)
        verify_model(bundle, reading.build(again) if again else graph)
        derived = "" if step is None else "the decode step that is derived from "
        derived = derived if train is None else "the gradients that are derived from "
        claim = f"its operations and tensors are those of {derived}{model}, no more and no less"
        if step is None:
            return (FIGURES_CLAIM, claim), unproved
        phase("computing steps")
        tried = reading.try_steps()
        if tried is None:
            return (FIGURES_CLAIM, claim), (*unproved, _UNTRIED)
        return (FIGURES_CLAIM, claim, f"{tried} steps with random numbers compute what the model does"), unproved

    verify_plan(plan, weights, Ranks(ranks, sites_per_rank), as_json, prove_more)


@dataclass(frozen=True, slots=True)
class ModelReading:
    """A model's text, the file that it is from, and how it is read."""

    text: str
    file: str
    options: CompileOptions

    def build(self, again: int = 0) -> Graph:
        """The graph, fused as for compiling; for a plan in which so many operators are computed again for gradients."""
        from einc.compiler import read_model
        from einc.graph.fuse import fuse
        from einc.graph.graph import verify_graph

        source = read_model(self.text, self.file, self.options)
        if again and self.options.train is not None and self.options.recompute == AUTO:
            from einc.training.recomputation import restore_recomputed

            return restore_recomputed(source, self.options.train, again)
        graph = fuse(source)
        verify_graph(graph)
        return graph

    def try_steps(self) -> int | None:
        """Tries the steps of the model in f64, and says how many; None where that takes too long, or f64 is refused."""
        from einc.compiler import read_model
        from einc.graph.decode_step import derive_step
        from einc.verification.steps import can_be_tried, try_steps

        assert self.options.step is not None
        wide = replace(self.options, dtype="f64", step=None)
        try:
            model = read_model(self.text, self.file, wide)
        except ModelError:
            return None
        step = derive_step(model, self.options.step)
        if (blocks := step.tokens.blocks) is not None:  # those that all sequences fill: plans may have fewer
            enough = replace(blocks, count=max(blocks.count, math.prod(step.tokens.table.shape)))
            step = derive_step(model, replace(self.options.step, blocks=enough))
        return try_steps(model, step) if can_be_tried(model, step) else None
