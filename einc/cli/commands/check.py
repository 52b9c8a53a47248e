"""`einc check`: parse and type-check a model, and nothing more."""

from __future__ import annotations

import click

from einc.cli.files import read_text
from einc.cli.options import Definition
from einc_runtime.cli import output
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.text import format_count


@click.command(
    "check",
    cls=EincCommand,
    short_help="Parse and type-check a model.",
    epilog=examples("einc check ffn.ein", "einc check llama.ein -D n_layers=2 --dtype f32"),
)
@click.argument("model", metavar="MODEL.ein")
@click.option("-D", "definitions", type=Definition(), multiple=True, help="Replace a param or dim of the model.")
@click.option("--preset", metavar="NAME", help="Apply a preset of the model.")
@click.option("--dtype", metavar="DTYPE", help="Replace the floating dtypes of the model.")
@json_option
def check_command(
    model: str, definitions: tuple[tuple[str, str], ...], preset: str | None, dtype: str | None, as_json: bool
) -> None:
    """Parse and type-check a model; all its errors are reported together."""
    from einc.frontend import build
    from einc.graph.graph import TensorKind, verify_graph

    graph = build(read_text(model), model, definitions, preset, dtype)
    verify_graph(graph)
    if as_json:
        tensors = [
            {"name": t.name, "kind": t.kind.value, "dims": list(t.desc.dims), "shape": list(t.desc.shape),
             "dtype": t.desc.dtype.value, "stored": (t.stored or t.name) if t.kind is TensorKind.WEIGHT else None}
            for t in graph.tensors
        ]  # fmt: skip
        output.say_json(
            {"model": graph.name, "operators": len(graph.nodes), "tensors": tensors, "outputs": list(graph.outputs)}
        )
    else:
        kinds = [tensor.kind.value for tensor in graph.tensors]
        counts = ", ".join(
            format_count(number, what)
            for what, number in (
                ("input", kinds.count("input")), ("weight", kinds.count("weight")), ("operator", len(graph.nodes))
            )
        )  # fmt: skip
        names = [*graph.outputs[:8], *([f"{len(graph.outputs) - 8} more"] if len(graph.outputs) > 8 else [])]
        output.say(f"{model}: model {graph.name} is well-typed: {counts}, outputs {', '.join(names)}")
