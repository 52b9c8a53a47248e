"""Getting the plan that a command is about: from a file, or by compiling a model first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import is_plan, read_model_text
from einc.cli.options import find_option, keep_best_on_interrupt, note_programs, read_options, read_proposers
from einc_runtime.cli import files, output

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle


def load_plan(source: str, arguments: dict[str, Any], phase: Any) -> Bundle:
    """The plan in a file, as this says it, or of a model with the options of `einc compile` in `arguments`.

    Raises UsageError for such options with a plan; `--ideal` alone has a meaning for both.
    """
    if is_plan(source):
        options = list_given(arguments)
        if options:
            raise click.UsageError(f"{options[0]} is for compiling; {source} is a plan already")
        phase("reading the plan")
        return files.read_plan(source, folded=True)
    from einc.compiler import compile_model

    compiled = compile_model(read_model_text(source), source, read_options(arguments), phase, read_proposers(arguments))
    if compiled.target.note:
        output.note(f"einc: {compiled.target.note}")
    with keep_best_on_interrupt(compiled.budget):
        bundle = compiled.folded_bundle
    note_programs(compiled)
    return bundle


def list_given(arguments: dict[str, Any], besides: tuple[str, ...] = ("ideal",)) -> list[str]:
    """The options among `arguments` that were given, apart from those named in `besides`, as they are written."""
    names = [name for name, value in arguments.items() if name not in besides and value not in (None, (), False)]
    return [find_option(name) for name in names]
