"""How long `einc compile` takes on 8 sites, beside another version of einc: seconds of the processor.

    python -m tests.bench.versions CHECKOUT [--case NAME]... [--rounds 3] [--write]

CHECKOUT is a folder with the sources of the other version (`git worktree add CHECKOUT COMMIT`), which runs with the
packages of this one. They run in turns, each in a process of its own with one thread; the least of the rounds counts.
`--write` puts the rows into docs/planning-speed.md; rows of cases that were not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench.experiments.configurations import BLOCKS, CHAINS, TITLES
from tests.bench.planning import CROSS, ROOT

PAGE = ROOT / "docs" / "planning-speed.md"
MARKS = ("<!-- versions -->", "<!-- end of versions -->")

CASES = {
    **{preset: ("llama_block", "--preset", preset) for preset in BLOCKS},
    **{chain: (chain,) for chain in CHAINS},
    **{name: (name,) for name in ("ffn", "moe", "cross", "llama", "llama_decode")},
}
"""Names of models and further arguments of the command."""

MACHINES = ("dgx-a100", "dgx-h100")


def time_compile(checkout: Path, model: Path, arguments: Sequence[str]) -> float:
    """Seconds of the processor from Python's start to its end. Raises CalledProcessError where the command fails."""
    paths = os.pathsep.join([str(checkout), str(checkout / "runtime")])
    environment = {**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "einc", "compile", model, *arguments, "-o", Path(folder, "plan.bin")]
        subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(checkout: Path, name: str, machine: str, rounds: int) -> str:
    """The row of a case."""
    model, *arguments = CASES[name]
    times: dict[Path, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, f"{model}.ein")
        file = ROOT / "models" / text.name
        text.write_text(CROSS if model == "cross" else file.read_text(encoding="utf-8"), encoding="utf-8")
        for _ in range(rounds):
            for version in (checkout, ROOT):
                seconds = time_compile(version, text, [*arguments, "-m", machine])
                times[version] = min(seconds, times.get(version, seconds))
    old, new = times[checkout], times[ROOT]
    return f"| {TITLES.get(name, name)} | {machine} | {old:.2f} | {new:.2f} | {new / old:.2f} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--machine", action="append", choices=MACHINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    table, _, after = rest.partition(MARKS[1])
    rows = {tuple(line.split(" | ")[:2]): line for line in table.splitlines()[3:]}
    for name in options.case or CASES:
        for machine in options.machine or MACHINES:
            row = compare(options.checkout.resolve(), name, machine, options.rounds)
            rows[tuple(row.split(" | ")[:2])] = row
            print(row, flush=True)
    if options.write:
        header = ["| model | machine, 8 sites | before | now | ratio |", "| --- | --- | ---: | ---: | ---: |"]
        lines = "\n".join([*header, *rows.values()])
        PAGE.write_text(f"{before}{MARKS[0]}\n{lines}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
