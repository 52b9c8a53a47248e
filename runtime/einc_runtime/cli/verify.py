"""The command `verify`, in both programs: prove a plan correct from its file alone."""

from __future__ import annotations

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import format_count


@click.command(
    "verify",
    cls=EincCommand,
    short_help="Prove from a plan's file alone that data arrives complete and that no two tasks race.",
    epilog=examples("PROGRAM verify ffn.bin"),
)
@click.argument("plan", metavar="PLAN")
@json_option
def verify_command(plan: str, as_json: bool) -> None:
    """Prove from a plan's file alone that data arrives complete and that no two tasks race.

    Every task is followed symbolically: each kernel must receive exactly its fully aggregated blocks, no two tasks may
    race, and the outputs must be complete. What kernels compute is not proved.
    """
    from einc_runtime.plan.proof import prove

    with show_phases() as phase:
        phase("reading the plan")
        bundle = files.read_plan(plan)
        phase("following every task")
        with files.reading(plan):
            prove(bundle)
    counts = {"operators": len(bundle.operations), "sites": len(bundle.devices), "tasks": len(bundle.tasks)}
    if as_json:
        output.say_json({"valid": True, "model": bundle.model, **counts})
    else:
        output.say(
            f"{plan}: proved: on {format_count(counts['sites'], 'site')}, all of "
            f"{format_count(counts['tasks'], 'task')} read complete data and no two of them race; "
            f"the outputs of {bundle.model} are complete"
        )
