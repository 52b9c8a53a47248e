"""What the selectors come to, and how well the proxy foretells time (paper, Experiments 3 and 5), in predicted time.

For each workload the plan of `eindecomp`, that of `greedy`, and random ones: predicted times, and Pearson's correlation
of cost and predicted time over the random plans that fit into memory. Exchanges are naive by default;
`--schedule synthesized` takes far longer.

    python -m tests.bench.selectors [--machine dgx-a100] [--devices 8] [--draws 20] [--schedule naive] [CASE]...
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import suppress
from dataclasses import dataclass

from tests.bench.predicted import CHAINS, LLAMA, MODELS


@dataclass(frozen=True)
class Row:
    """Milliseconds of a workload, by selector."""

    case: str
    best: float
    greedy: float
    drawn: tuple[float, ...]
    correlation: float

    @property
    def median(self) -> float:
        return statistics.median(self.drawn)


def measure(case: str, machine: str, devices: int, draws: int, schedule: str) -> Row:
    from einc.compiler import compile_model
    from einc.errors import CapacityError
    from einc.options import CompileOptions

    name, preset = (case, None) if case in CHAINS else ("llama_block", case)
    text = (MODELS / f"{name}.ein").read_text()

    def plan(selector: str, seed: int = 0) -> tuple[int, float]:
        options = CompileOptions(machine, devices, preset=preset, selector=selector, schedule=schedule, seed=seed)
        compiled = compile_model(text, f"{name}.ein", options)
        return compiled.plan.total_cost, compiled.program.predicted_ms

    random = []
    for seed in range(draws):
        with suppress(CapacityError):
            random.append(plan("random", seed))
    costs, times = zip(*random, strict=True)
    return Row(case, plan("eindecomp")[1], plan("greedy")[1], times, statistics.correlation(costs, times))


def means(rows: list[Row]) -> str:
    """Geometric means over workloads, relative to `eindecomp`."""
    parts = {
        "greedy": [row.greedy / row.best for row in rows],
        "median random plan": [row.median / row.best for row in rows],
        "best random plan": [min(row.drawn) / row.best for row in rows],
    }
    return ", ".join(f"{name} {statistics.geometric_mean(ratios):.2f}" for name, ratios in parts.items())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.selectors", description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"any of {', '.join((*LLAMA, *CHAINS))}; all by default"
    )
    parser.add_argument("--machine", default="dgx-a100")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--schedule", default="naive")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - {*LLAMA, *CHAINS}
    if unknown:
        parser.error(f"there is no case {min(unknown)}")
    if options.draws < 2:
        parser.error("a correlation takes two draws or more")
    print("case     eindecomp ms  greedy ms random: best  median ms plans      r")
    rows = []
    for case in options.cases or (*LLAMA, *CHAINS):
        row = measure(case, options.machine, options.devices, options.draws, options.schedule)
        print(
            f"{case:<8} {row.best:>12.3f} {row.greedy:>10.3f} {min(row.drawn):>12.3f} {row.median:>10.3f}"
            f" {len(row.drawn):>5} {row.correlation:>6.2f}",
            flush=True,
        )
        rows.append(row)
    for name, group in (("LLaMA blocks", LLAMA), ("chains", CHAINS)):
        chosen = [row for row in rows if row.case in group]
        if chosen:
            print(f"{name}, relative to eindecomp, in geometric mean: {means(chosen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
