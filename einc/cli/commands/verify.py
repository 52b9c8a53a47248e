"""`einc verify`: the runtime's proof, the figures of the plan, and that it computes a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from einc.cli.files import read_text
from einc.cli.options import Definition
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.cli.verify import Ranks, assignment_option, ranks_option, verify_plan, weights_option

if TYPE_CHECKING:
    from einc.graph.graph import Graph
    from einc_runtime.plan.schema import Bundle

_FIGURES_CLAIM = (
    "costs, memory, times, bounds and exchange programs are those of the cuts, the tasks and the machine file"
)
_NO_MODEL = "that the plan computes a certain model (--model MODEL.ein proves it)"


@click.command(
    "verify",
    cls=EincCommand,
    short_help="Prove a plan: its tasks, its figures, and that it computes a model.",
    epilog=examples(
        "einc verify ffn.bin",
        "einc verify ffn.bin --model ffn.ein -D tokens=1000",
        "einc verify llama.bin --model llama.ein --weights weights/",
    ),
)
@click.argument("plan", metavar="PLAN")
@click.option("--model", metavar="MODEL.ein", help="Prove that the plan computes this model.")
@click.option("-D", "definitions", type=Definition(), multiple=True, help="As the plan was compiled, with --model.")
@click.option("--preset", metavar="NAME", help="As the plan was compiled, with --model.")
@click.option("--dtype", metavar="DTYPE", help="As the plan was compiled, with --model.")
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
    weights: str | None,
    ranks: bool,
    sites_per_rank: tuple[int, ...] | int | None,
    as_json: bool,
) -> None:
    """Prove a plan: its tasks, its figures, and that it computes a model.

    Kernels, their attributes and their blocks are derived again from every operation and its cut. Every task is
    followed symbolically: each kernel must receive exactly its fully aggregated blocks, no two tasks may race, and the
    outputs must be complete. Costs, times, bounds and the texts of exchanges are computed again. With
    --model, the plan must have the operations and tensors of the model, no more and no less. The last lines say what
    is not proved.
    """
    if model is None and (definitions or preset is not None or dtype is not None):
        raise click.UsageError("-D, --preset and --dtype say how a model is read: give --model, too")
    graph = None if model is None else _build_graph(model, definitions, preset, dtype)

    def prove_more(bundle: Bundle, phase: Callable[[str], None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from einc.verification.figures import verify_figures
        from einc.verification.model import verify_model

        phase("computing its figures again")
        unproved = verify_figures(bundle)
        if graph is None:
            return (_FIGURES_CLAIM,), (*unproved, _NO_MODEL)
        phase("comparing it with the model")
        verify_model(bundle, graph)
        return (_FIGURES_CLAIM, f"its operations and tensors are those of {model}, no more and no less"), unproved

    verify_plan(plan, weights, Ranks(ranks, sites_per_rank), as_json, prove_more)


def _build_graph(model: str, definitions: tuple[tuple[str, str], ...], preset: str | None, dtype: str | None) -> Graph:
    """The graph of a model, fused as for compiling."""
    from einc.frontend import build
    from einc.graph.fuse import fuse
    from einc.graph.graph import verify_graph

    graph = fuse(build(read_text(model), model, definitions, preset, dtype))
    verify_graph(graph)
    return graph
