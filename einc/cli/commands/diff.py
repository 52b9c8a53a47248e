"""`einc diff`: what changed from one plan to another, for reviews."""

from __future__ import annotations

import click
from click.exceptions import Exit

from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases

_COLOURS = {"added": "green", "removed": "red", "changed": "yellow"}
DIFFERENT = 1
"""The exit code where the plans are not the same, as that of `diff`."""


@command(
    "diff",
    "einc diff before.bin after.bin",
    "einc diff before.bin after.bin --json",
    short_help="Show what changed from one plan to another.",
)
@click.argument("first", metavar="PLAN")
@click.argument("second", metavar="PLAN2")
@click.option("--ideal", is_flag=True, help="Assume no latencies, and peaks of GPUs and links.")
@json_option
def diff_command(first: str, second: str, ideal: bool, as_json: bool) -> None:
    """Show what changed from one plan to another: cuts, sites, moves, exchanges, time and memory.

    Operators are matched by their names; those of equal layers stand in one row. The plans may be for other machines,
    numbers of sites or versions of a model. The exit code is 0 for equal plans and 1 for others.
    """
    from einc.report.differences import compare_plans, format_differences

    with show_phases() as phase:
        phase("comparing the plans")
        document = compare_plans(files.read_plan(first), files.read_plan(second), ideal=ideal)
    if as_json:
        output.say_json(document)
    else:
        output.say(format_differences(document, (first, second), _style))
    if not document["equal"]:
        raise Exit(DIFFERENT)


def _style(text: str, kind: str) -> str:
    if not output.use_colours():
        return text
    return click.style(text, bold=True) if kind == "heading" else click.style(text, fg=_COLOURS[kind])
