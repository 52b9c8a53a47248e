"""`einc describe`: what a plan takes and gives, and what running it needs; with what its predicted time is worth."""

from __future__ import annotations

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option


@command(
    "describe",
    "einc describe ffn.bin",
    "einc describe ffn.bin --json",
    short_help="Show what a plan takes, gives and needs.",
)
@click.argument("plan", metavar="PLAN")
@json_option
def describe_command(plan: str, as_json: bool) -> None:
    """Show what a plan takes and gives, and what running it needs.

    `einc explain` also says how every operator is cut and why.
    """
    from einc.report.tables import describe_trust
    from einc.report.times import describe_prediction
    from einc_runtime.cli.describe import describe_plan, format_lines

    bundle = files.read_plan(plan)
    document = describe_plan(bundle) | describe_prediction(bundle)
    if as_json:
        output.say_json(document)
    else:
        output.say("\n".join(format_lines(document, describe_trust(document))))
