"""The command `verify`: prove a plan correct from its file alone.

`einc verify` proves more, and has options for it, because it has the compiler's operators and simulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import SITES_PER_RANK, command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc_runtime.plan.schema import Bundle

    Phase = Callable[[str], None]
    Further = Callable[[Bundle, Phase], tuple[tuple[str, ...], tuple[str, ...]]]
    """Proves more, and returns what it has proved and what remains unproved, in words."""

REPRODUCIBLE_CLAIM = (
    "no sum is cut, and all kernels are reproducible: results have the same bits for any number of sites"
)
_FIGURES_UNPROVED = "costs, times, bounds and the texts of exchange programs (`einc verify` proves them)"
_MODEL_CLAIM = "that the plan computes a certain model (`einc verify --model MODEL.ein` proves it)"
UNPROVED_BY_THE_RUNTIME = (_FIGURES_UNPROVED, _MODEL_CLAIM)
UNPROVED_BY_ANY = (
    "that the kernels of this machine compute what their names and attributes say",
    "the rounding of sums inside of kernels; between tasks, it is that of the order in which aggregations name copies",
    "that aggregations which the model defines are associative: their laws are tried on random values",
    "what the executors make of the tasks when they leave out copies or merge tasks",
)
"""`docs/proof.md` says of each why it is not proved, and what stands for a proof."""

weights_option = click.option(
    "--weights", multiple=True, metavar="FILE | DIR", help="Also check that these files have what fills each weight."
)
ranks_option = click.option(
    "--ranks", is_flag=True, help="Also prove that no process waits forever, in however many the plan is run."
)

assignment_option = click.option(
    "--sites-per-rank",
    type=SITES_PER_RANK,
    help="With --ranks: prove it also directly for processes with so many sites each, or for these numbers of sites.",
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Whether to prove that no process waits forever, and an assignment of sites to prove it of directly."""

    requested: bool
    shares: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.shares is not None and not self.requested:
            raise click.UsageError("--sites-per-rank says what --ranks is to prove: give it, too")


@command(
    "verify",
    "PROGRAM verify ffn.bin",
    short_help="Prove from a plan's file alone that its tasks compute what its operations say.",
)
@click.argument("plan", metavar="PLAN")
@weights_option
@ranks_option
@assignment_option
@json_option
def verify_command(
    plan: str, weights: tuple[str, ...], ranks: bool, sites_per_rank: tuple[int, ...] | int | None, as_json: bool
) -> None:
    """Prove from a plan's file alone that its tasks compute what its operations say.

    Kernels, their attributes and their blocks are derived again from every operation and its cut. Then every task is
    followed symbolically: each kernel must receive exactly its fully aggregated blocks, no two tasks may race, and the
    outputs must be complete. The last lines say what is not proved.
    """
    verify_plan(
        plan, weights, Ranks(ranks, sites_per_rank), as_json, lambda bundle, phase: ((), UNPROVED_BY_THE_RUNTIME)
    )


def verify_plan(plan: str, weights: tuple[str, ...], ranks: Ranks, as_json: bool, further: Further) -> None:
    """Prove, and report what was proved and what was not. Raises PlanFault and, for weights, ArrayFault."""
    from einc_runtime.execution.proved_plans import prove
    from einc_runtime.plan.proof import PROVED
    from einc_runtime.plan.repetition import unfold

    with show_phases() as phase:
        phase("reading the plan")
        folded = files.read_plan(plan, folded=True)
        phase("following every task")
        with files.reading(plan):
            bundle = unfold(folded)
            prove(bundle)
            proved, unproved = further(folded, phase)
            if ranks.requested:
                phase("matching messages between processes")
                proved += tuple(_verify_ranks(bundle, ranks.shares))
        if weights:
            phase("looking at the weights")
            proved += (_verify_weights(bundle, weights),)
    counts = {"operators": len(bundle.operations), "sites": len(bundle.devices), "tasks": len(bundle.tasks)}
    if bundle.reproducible:
        proved = (REPRODUCIBLE_CLAIM, *proved)
    proved, unproved = (*PROVED, *proved), (*unproved, *UNPROVED_BY_ANY)
    if as_json:
        output.say_json({"valid": True, "model": bundle.model, **counts, "proved": proved, "unproved": unproved})
        return
    sites, tasks = format_count(counts["sites"], "site"), format_count(counts["tasks"], "task")
    output.say(f"{plan}: proved of {bundle.model}, {tasks} on {sites}:")
    output.say("\n".join(f"    {line}" for line in proved))
    output.say("not proved:")
    output.say("\n".join(f"    {line}" for line in unproved))


def _verify_ranks(bundle: Bundle, shares: int | tuple[int, ...] | None) -> Iterator[str]:
    """Proves it of as many processes as there are sites. Fewer have some of these messages and no other waits,
    whatever sites they have (`plan/ranks.py`). Of those with `shares`, it is proved by their own tasks, too."""
    from einc_runtime.plan.ranks import assign_sites

    sites = len(bundle.memory)
    count = _prove_ranks(bundle, assign_sites(sites, sites))
    yield f"in any number of processes, messages match (at most {count:,}), and none waits forever"
    groups = _prove_lanes(bundle, assign_sites(sites, sites))
    yield f"the same on GPUs, which send and receive in the order of the plan (at most {groups:,} at once)"
    if shares is not None:
        ranks = -(-sites // shares) if isinstance(shares, int) else len(shares)
        count = _prove_ranks(bundle, assign_sites(sites, ranks, shares))
        shares_text = ", ".join(map(str, (shares,) if isinstance(shares, int) else shares))
        message_count = format_count(count, "message")
        _prove_lanes(bundle, assign_sites(sites, ranks, shares))
        in_processes = format_count(ranks, "process", "processes")
        yield f"in {in_processes} with {shares_text} sites each, by their own tasks: {message_count}"


def _prove_ranks(bundle: Bundle, ranks: Sequence[int]) -> int:
    from einc_runtime.execution.rewrites import RewriteOptions, rewrite
    from einc_runtime.plan.ranks import RankTask, prove_ranks

    options = [RewriteOptions(devices=ranks, rank=rank) for rank in range(max(ranks) + 1)]
    tasks = [
        [RankTask(item.origin, item.task, item.peer) for item in rewrite(bundle, rank_options)]
        for rank_options in options
    ]
    return prove_ranks(bundle, tasks)


def _prove_lanes(bundle: Bundle, ranks: Sequence[int]) -> int:
    """Proves it of processes whose sites have a GPU each. Returns the most messages of a group."""
    from einc_runtime.execution.ranks.part import list_gpu_tasks
    from einc_runtime.plan.lanes import order_lanes, prove_lanes

    tasks = [list_gpu_tasks(bundle, ranks, rank) for rank in range(max(ranks) + 1)]
    lanes = [order_lanes(bundle, items, range(len(ranks))) for items in tasks]
    prove_lanes(bundle, tasks, lanes)
    groups = [
        step
        for items, steps in zip(tasks, lanes, strict=True)
        for step in steps
        if items[step.places[0]].peer is not None
    ]
    return max((len(step.places) for step in groups), default=0)


def _verify_weights(bundle: Bundle, paths: Sequence[str]) -> str:
    from einc_runtime.execution.data.weights import list_weights, require_weights

    source = files.require_weights(paths)
    with files.reading(paths[0]):
        require_weights(list_weights(bundle), source)
    shown = " and ".join(paths)
    return f"{shown} has an array of a fitting type and shape for every weight, and the rows that weights name"
