"""Runs kernels and plans at every level of instructions that this processor has: `make test-processors`.

Each level is a run of pytest in a process of its own, with the level in the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys

import click

from einc_runtime.environment import PROCESSOR
from einc_runtime.kernels.processor import INSTRUCTION_LEVELS, list_levels, name_processor

TESTS = (
    "tests/runtime/kernels", "tests/runtime/execution", "tests/runtime/generation", "tests/api/test_api.py",
    "tests/quantizing", "tests/cli/test_run.py",
)  # fmt: skip
"""All tests of kernels and executors, and those that compile, run and check plans of every kind of model."""


@click.command()
@click.option("--level", "names", multiple=True, help="Try this level alone; several times for several.")
@click.option("--jobs", default="auto", show_default=True, help="Processes of pytest.")
def main(names: tuple[str, ...], jobs: str) -> None:
    """Tries every level of instructions that the processor has."""
    usable = [level.name for level in list_levels()]
    chosen = [name for name in usable if not names or name in names]
    click.echo(f"{name_processor()}: {', '.join(usable) or 'no levels'}")
    missing = [level.name for level in INSTRUCTION_LEVELS if level.name not in usable]
    if missing:
        click.echo(f"not tried, as this processor lacks them: {', '.join(missing)}")
    failed = []
    for name in chosen:
        click.echo(f"--- {name}")
        command = [sys.executable, "-m", "pytest", "-n", jobs, "-q", *TESTS]
        if subprocess.run(command, env={**os.environ, PROCESSOR: name}).returncode:
            failed.append(name)
    if failed or not chosen:
        sys.exit(f"failed: {', '.join(failed) or 'there was nothing to try'}")
    click.echo(f"passed: {', '.join(chosen)}")


if __name__ == "__main__":
    main()
