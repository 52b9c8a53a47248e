"""`einc reshard`: plan how the weights and caches of one plan become those of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from einc.cli.files import require_plan
from einc.cli.options import SCHEDULE_NAME, SECONDS, keep_best_on_interrupt, machine_option
from einc.options import SCHEDULES
from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle


@command(
    "reshard",
    "einc reshard four.bin six.bin",
    "einc reshard four.bin six.bin -o reshard.bin",
    "einc run reshard.bin --weights four/ --ranks 4 --shards -o six/model.safetensors",
    short_help="Turn the weights and caches of one plan into those of another.",
)
@click.argument("first", metavar="PLAN")
@click.argument("second", metavar="PLAN2")
@click.option("-o", "--output", "target", metavar="FILE", help="Write a plan that does it; - is standard output.")
@machine_option()
@click.option(
    "--schedule",
    type=SCHEDULE_NAME,
    metavar="[synthesized|naive]",
    default="synthesized",
    help="How data movement is planned.  [default: synthesized]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seeds all random choices.  [default: 0]")
@click.option("--time-limit", type=SECONDS, help="End the search for exchange programs after this time.")
@click.option("--ideal", is_flag=True, help="Assume no latencies, and peaks of GPUs and links.")
@json_option
def reshard_command(
    first: str,
    second: str,
    target: str | None,
    machine: str | None,
    schedule: str,
    seed: int,
    time_limit: float | None,
    ideal: bool,
    as_json: bool,
) -> None:
    """Turn the weights and caches of one plan into those of another with other sites or cuts.

    Both plans must be of one model. Shows what has to move, how long that takes, and the time that no way of moving it
    can go below. With -o, the result is a plan: it loads the blocks of PLAN, and its outputs are those of PLAN2.
    Without -m, the machine is that of the plan whose sites include those of the other.
    """
    from einc.physical.budget import SearchBudget
    from einc.resharding.building import build_resharding
    from einc.resharding.layouts import compare_layouts
    from einc.resharding.totals import describe_resharding, format_resharding

    if target == output.STDOUT and as_json:
        raise click.UsageError("-o - writes the plan to standard output, which --json needs for itself")
    if target is not None:
        output.require_outputs([target], [path for path in (first, second, machine) if path is not None])
        require_plan(target)
    budget = SearchBudget(time_limit)
    with show_phases() as phase:
        phase("reading the plans")
        resharding = compare_layouts(files.read_plan(first), files.read_plan(second), machine, ideal=ideal)
        with keep_best_on_interrupt(budget):
            plan = build_resharding(
                resharding,
                schedule=SCHEDULES[schedule],
                budget=budget,
                seed=seed,
                report=lambda step, best, bound: phase(f"{step}: {best:.4g} ms, at least {bound:.4g} ms"),
            )
        phase("bounding all exchanges together")
        document = describe_resharding(resharding, plan)
    document |= {"plan": target, "bytes": None if target is None else _write(plan, target)}
    for note in resharding.notes:
        output.note(f"einc: {note}")
    if as_json:
        output.say_json(document)
    else:
        text = format_resharding(document)
        (output.note if target == output.STDOUT else output.say)(text)


def _write(plan: Bundle, target: str) -> int:
    """Writes the plan, and returns the size of the file."""
    from einc_runtime.plan.codec import encode

    data = encode(plan)
    output.write_bytes(target, data)
    return len(data)
