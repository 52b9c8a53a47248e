"""What einc itself costs on this machine's cores: starting up, starting tasks, preparing a plan, memory.

python -m tests.bench.overheads [--write]      --write puts the figures into docs/benchmarks/costs.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from einc_runtime.execution.cpu import thread_pool
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph
from einc_runtime.plan.codec import read_bundle
from tests.bench import report
from tests.bench.cases import CASES, MODELS
from tests.bench.measure import COMMAND_LINE, compile_arguments, run_einc

NAMES = ("chain_a", "block512", "block2048")
SITES = (1, 2, 8, 72)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.overheads", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks/costs.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"- {line}" for line in (*_tasks(), _start_up(Path(folder)))]
        lines += ["", "| plan | sites | tasks run, of | to prepare | plan's memory | beside it | most of the process |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |", *_plans(Path(folder))]
    text = "\n".join(["`python -m tests.bench.overheads`", "", *lines, "", f"<sub>{report.machine()}</sub>"])
    print(text)
    if options.write:
        report.write("overheads", f"## What einc itself costs\n\n{text}")
    return 0


def _tasks() -> list[str]:
    """Empty tasks, in layers of eight of which each waits for all of the layer before."""
    after = [tuple(range(n // 8 * 8 - 8, n // 8 * 8)) if n >= 8 else () for n in range(4000)]
    graph, found = RankedTaskGraph.of(after, [100.0] * len(after)), []
    for workers in (1, 2):
        seconds = [thread_pool.run_tasks(graph, workers, lambda _: lambda _: None) for _ in range(21)]
        each = statistics.median(seconds) / len(after) * 1e6
        found.append(
            f"starting and ending an empty task that waits for eight others, on {workers} threads: {each:.1f} us"
        )
    return found


def _start_up(folder: Path) -> str:
    """With bytecode kept from run to run, as it is where einc is installed."""
    plan, times = folder / "small.bin", []
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    small = ["-Dtokens=8", "-Dd_model=16", "-Dd_ff=32"]
    run_einc("compile", str(MODELS / "ffn.ein"), "-m", "host", "--devices", "4", *small, "-o", str(plan))
    for _ in range(11):
        start = time.perf_counter()
        run_einc("run", str(plan), "--inputs", "rand:0", "--weights", "rand:1")
        times.append(time.perf_counter() - start)
    return f"`einc run` on a small plan, from the start of the process to its end: {statistics.median(times):.2f} s"


def _plans(folder: Path) -> list[str]:
    """Of each plan: tasks, time to make an executor, and bytes as `einc run --json` states them."""
    rows = []
    for case in CASES:
        for sites in SITES if case.name in NAMES else ():
            plan = folder / f"{case.name}-{sites}.bin"
            run_einc(*compile_arguments(case, str(MODELS / f"{case.model}.ein"), sites, case.dtype, str(plan)))
            bundle, start = read_bundle(plan), time.perf_counter()
            executor = CpuExecutor(bundle)
            seconds = time.perf_counter() - start
            command = [
                sys.executable,
                "-c",
                COMMAND_LINE,
                "run",
                str(plan),
                "--inputs",
                "rand:0",
                "--weights",
                "rand:0",
            ]
            said = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
            held = said["memory_bytes"]
            beside = sum(count for name, count in held.items() if name not in ("plan", "process") and count)
            megabytes = [f"{count / 1e6:,.0f} MB" for count in (held["plan"], beside, held["process"] or 0)]
            tasks = f"{executor.facts().cpu.tasks:,} of {len(bundle.tasks):,}"
            rows.append(f"| {' | '.join([case.name, str(sites), tasks, f'{seconds * 1e3:.0f} ms', *megabytes])} |")
    return rows


if __name__ == "__main__":
    sys.exit(main())
