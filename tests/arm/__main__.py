"""Runs kernels and plans as aarch64 under qemu, at every level of instructions of ARM: `make test-arm`.

Each level is a run of pytest by a Python for arm64, on an emulated processor that has the level and no more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import click

from einc_runtime.environment import PROCESSOR
from einc_runtime.kernels.processor import ARM_LEVELS
from tests.arm.root import ROOT, list_missing, make_root

PROCESSORS = {"armv8-a": "cortex-a53", "armv8.2-a": "neoverse-n1", "armv8.6-a": "max,sve=off", "armv9-a": "max"}
"""What qemu calls a processor of each level."""

NAMES = (
    "llvm", "gemm", "schedules", "processor", "few_rows", "moves", "orders", "attention_compiled", "keyed_aggregates",
    "small_kernels", "reproducible", "quantized_kernels", "rounded_kernels", "reduce", "map",
)  # fmt: skip
TESTS = (
    *(f"tests/runtime/kernels/test_{name}.py" for name in NAMES),
    "tests/api/test_compiling_models.py",
    "tests/runtime/execution/test_transformer_plans.py",
)
"""Kernels as machine code, schedules with their atomics and waits, and plans of whole models."""

FEWER = TESTS[:4]
"""What is tried again at each level above the first; all of it with --all."""


@click.command()
@click.option("--level", "names", multiple=True, help="Try this level alone; several times for several.")
@click.option("--all", "every", is_flag=True, help="All tests at each level.")
@click.option("--jobs", default="auto", show_default=True, help="Processes of pytest.")
@click.argument("paths", nargs=-1)
def main(names: tuple[str, ...], every: bool, jobs: str, paths: tuple[str, ...]) -> None:
    """Tries the levels of ARM, on PATHS or on a sample of tests."""
    missing = list_missing()
    if missing:
        sys.exit("\n".join(["missing:", *(f"  {line}" for line in missing)]))
    python, failed = make_root(), []
    for number, level in enumerate(ARM_LEVELS):
        if names and level.name not in names:
            continue
        tests = paths or (TESTS if every or number == 0 or names else FEWER)
        click.echo(f"--- {level.name}: {PROCESSORS[level.name]}")
        command = [str(python), "-m", "pytest", "-n", jobs, "-q", "-p", "no:cacheprovider", *tests]
        environment = {**os.environ, PROCESSOR: level.name, "QEMU_CPU": PROCESSORS[level.name]}
        begin = time.monotonic()
        if subprocess.run(command, env=environment, cwd=ROOT).returncode:
            failed.append(level.name)
        click.echo(f"{level.name} took {time.monotonic() - begin:.0f} s")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
