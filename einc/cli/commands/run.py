"""`einc run`: the runtime's `run` with one option more, `--check`."""

from __future__ import annotations

from typing import Any

import click

from einc_runtime.cli.base import command
from einc_runtime.cli.run import Reference, RunOptions, run_options, run_plan


@command(
    "run",
    "einc run ffn.bin --inputs x.npy --weights w.safetensors -o y.npy",
    "einc run ffn.bin --inputs x=rand:0 --weights rand:1 --check",
    "einc run ffn.bin --inputs x.npy --weights w.npz --expect y=expected.npy --repeat 10 --json",
    short_help="Execute a plan on arrays.",
)
@run_options
@click.option("--check", is_flag=True, help="Compare with the unpartitioned computation.")
def run_command(check: bool, **arguments: Any) -> None:
    """Execute a plan on arrays.

    Plans run on the visible GPUs, one site on each or as --devices says. Without GPUs they run on the CPU: every plan
    does, whatever machine it was compiled for. A plan is proved before it runs; the proofs of large plans are
    remembered.
    """
    reference = None
    if check:
        from einc.plan_reading.restore import compute_outputs, measure_movements

        reference = Reference(compute_outputs, measure_movements)
    run_plan(RunOptions(**arguments), reference)
