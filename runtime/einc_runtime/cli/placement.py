"""Where a command runs a plan: in this process, which then needs nothing of the others, or in several by MPI."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from einc_runtime.cli import files

if TYPE_CHECKING:
    from einc_runtime.cli.ranks import World


def run_on_ranks(
    plan: str,
    ranks: int | None,
    sites_per_rank: int | tuple[int, ...] | None,
    run: Callable[[World | None], None],
    *,
    as_json: bool,
) -> None:
    """Calls `run` in this process, or in each of several that run a plan together, as options and MPI say."""
    from einc_runtime.execution.ranks.mpi import is_started_by_mpi

    if ranks in (None, 1) and sites_per_rank is None and not is_started_by_mpi():
        run(None)
        return
    from einc_runtime.cli.launching import start_ranks
    from einc_runtime.cli.ranks import join_ranks, require_ranks
    from einc_runtime.execution.task_errors import name_task

    def describe(position: int) -> str:
        return name_task(position, files.read_plan(plan).tasks[position])

    require_ranks(ranks, sites_per_rank)
    if ranks not in (None, 1) and not is_started_by_mpi():
        name = click.get_current_context().find_root().info_name
        start_ranks(ranks, sys.argv[1:], "einc_runtime" if name == "einc-runtime" else "einc", describe)
        return
    with join_ranks(describe, sites_per_rank, as_json=as_json) as world:
        run(world)
