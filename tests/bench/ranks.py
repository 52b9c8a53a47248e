"""What several processes cost: runs of one plan in ranks of MPI, relative to runs in one process.

    python -m tests.bench.ranks [CASE ...] [--ranks 2,8] [--pairs 5] [--repeat 5]

Runs in one process and in ranks take turns on the same cores. The time of a run is the median of its repetitions, and a
ratio is the median over the pairs. MPI is needed (the extra `mpi`). Exits 1 if a ratio is above the target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench import report
from tests.bench.cases import CASES, Case

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGET = 1.15
"""At most so many times the time of one process."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=["block2048"])
    parser.add_argument("--ranks", default="2,8")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args(arguments)
    known = {case.name: case for case in CASES}
    worst = 0.0
    print("| case | ranks | one process, ms | ranks, ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.cases:
            plan = compile_case(known[name], Path(scratch))
            for count in map(int, options.ranks.split(",")):
                pairs = [(measure(plan, 1, options.repeat), measure(plan, count, options.repeat))
                         for _ in range(options.pairs)]  # fmt: skip
                ratio = statistics.median(several / one for one, several in pairs)
                alone, together = (statistics.median(column) for column in zip(*pairs, strict=True))
                print(f"| {name} | {count} | {alone:.1f} | {together:.1f} | {ratio:.2f} |", flush=True)
                worst = max(worst, ratio)
    print(f"\n{report.machine()}")
    return int(worst > TARGET)


def compile_case(case: Case, folder: Path) -> Path:
    """The plan of a case for eight sites of this host."""
    plan = folder / f"{case.name}.bin"
    definitions = [word for pair in case.definitions for word in ("-D", "=".join(map(str, pair)))]
    model = str(MODELS / f"{case.model}.ein")
    call("compile", model, "-m", "host", "--devices", "8", *definitions, "-o", str(plan))
    return plan


def measure(plan: Path, ranks: int, repeat: int) -> float:
    """The median of the times in ms of a plan with random inputs, without the first one."""
    several = ["--ranks", str(ranks)] if ranks > 1 else []
    given = ("--inputs", "rand:0", "--weights", "rand:1")
    told = call("run", str(plan), *given, "--repeat", str(repeat + 1), "--json", *several)
    times: list[float] = json.loads(told)["ms"]
    return statistics.median(times[1:])


def call(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "einc", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
