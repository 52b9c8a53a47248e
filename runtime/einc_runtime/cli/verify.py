"""The command `verify`, in both programs: prove a plan correct from its file alone."""

from __future__ import annotations

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import counted


@click.command(
    "verify",
    cls=EincCommand,
    short_help="Prove a plan correct from its file alone.",
    epilog=examples("PROGRAM verify ffn.bin"),
)
@click.argument("plan", metavar="PLAN")
@json_option
def verify_command(plan: str, as_json: bool) -> None:
    """Prove a plan correct from its file alone.

    Every task is followed symbolically: each kernel must receive exactly its fully aggregated blocks, no two tasks may
    race, and the outputs must be whole.
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
            f"{plan}: proved: every one of {counted(counts['tasks'], 'task')} on {counted(counts['sites'], 'site')} "
            f"gets what it needs, and the outputs of {bundle.model} are whole"
        )
