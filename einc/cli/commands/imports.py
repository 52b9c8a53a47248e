"""`einc import`: models of other formats."""

from __future__ import annotations

import click

from einc.cli.lazy import Command, LazyGroup, examples
from einc.errors import MissingError

group = LazyGroup(
    "import",
    {"hf": (f"{__name__}:hf_command", "Make a model of a Hugging Face folder (comes later).")},
    help="Make models of other formats.",
    epilog=examples("einc import hf llama-3-8b -o llama.ein"),
)


@click.command("hf", cls=Command, epilog=examples("einc import hf llama-3-8b -o llama.ein"))
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", "target", metavar="MODEL.ein", help="The model to write.")
def hf_command(folder: str, target: str | None) -> None:
    """Make a model of a Hugging Face folder (comes later)."""
    raise MissingError(
        "importing Hugging Face models comes later", hint="`einc models list` shows models to start from"
    )
