"""Predicted time of whole plans, exchanges synthesized against naive: chains A to E and the LLaMA workloads, ideal.

`free` is the time of the naive plan if nothing had to move or be combined: no exchange makes a plan with its cuts
faster. The targets are the speed-ups that the paper measured on its cube-mesh server (paper, Section 6).

    python -m tests.bench.predicted [--machine dgx-v100]... [--devices 8] [--schedule synthesized] [--time-limit S]
        [CASE]...
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"
CHAINS = tuple(f"chain_{letter}" for letter in "abcde")
LLAMA = ("b1x1k", "b1x8k", "b1x128k", "b8x1k", "b128x1k")
MACHINES = ("dgx-v100", "dgx-a100", "dgx-h100")

AT_LEAST = {("dgx-v100", "chain_a"): 1.41, ("dgx-v100", "chain_b"): 1.32, ("dgx-v100", "llama"): 1.056}
NEVER_SLOWER = ("dgx-a100",)
SLACK = 1e-9


@dataclass(frozen=True)
class Row:
    machine: str
    case: str
    naive_ms: float
    found_ms: float
    free_ms: float
    seconds: float

    @property
    def gain(self) -> float:
        return self.naive_ms / self.found_ms


def compare(machine: str, case: str, devices: int, schedule: str, limit: float | None) -> Row:
    from einc.compiler import compile_model
    from einc.options import CompileOptions
    from einc.predict.costs import TaskKind, compute_task_costs
    from einc.predict.timeline import time_tasks

    chain = case in CHAINS
    name = case if chain else "llama_block"
    text = (MODELS / f"{name}.ein").read_text()
    options = CompileOptions(
        machine=machine, devices=devices, preset=None if chain else case, ideal=True, schedule="naive"
    )
    naive = compile_model(text, f"{name}.ein", options)
    target = naive.target.machine
    naive_ms = naive.program.predicted_ms
    free = [
        cost if cost.kind is TaskKind.KERNEL else cost._replace(kind=TaskKind.FENCE, size=0)
        for cost in compute_task_costs(naive.program)
    ]
    start = time.monotonic()
    found = compile_model(text, f"{name}.ein", replace(options, schedule=schedule, time_limit=limit))
    found_ms = found.program.predicted_ms
    return Row(machine, case, naive_ms, found_ms, time_tasks(free, target).predicted_ms, time.monotonic() - start)


def verdicts(rows: list[Row]) -> list[tuple[str, bool]]:
    """What was asked of these rows, in words, and whether it holds."""
    found = []
    for machine in dict.fromkeys(row.machine for row in rows):
        gains = {row.case: row.gain for row in rows if row.machine == machine}
        blocks = [gain for case, gain in gains.items() if case in LLAMA]
        if blocks:
            gains["llama"] = prod(blocks) ** (1 / len(blocks))
            found.append((f"{machine}: LLaMA blocks {gains['llama']:.3f} in geometric mean", True))
        for case, gain in gains.items():
            least = AT_LEAST.get((machine, case))
            if least is not None and (case != "llama" or len(blocks) == len(LLAMA)):
                found.append((f"{machine}: {case} {gain:.3f}, at least {least}", gain >= least))
        if machine in NEVER_SLOWER:
            worst = min(gains.values())
            found.append((f"{machine}: never slower, {worst:.3f} at worst", worst >= 1 - SLACK))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.predicted", description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"any of {', '.join((*CHAINS, *LLAMA))}; all by default"
    )
    parser.add_argument("--machine", action="append", help=f"by default {', '.join(MACHINES)}")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--schedule", default="synthesized")
    parser.add_argument("--time-limit", type=float)
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - {*CHAINS, *LLAMA}
    if unknown:
        parser.error(f"there is no case {min(unknown)}")
    print(f"{'machine':<10} {'case':<8} {'naive ms':>10} {'found ms':>10} {'free ms':>10} {'gain':>6} {'compile s':>9}")
    rows = []
    for machine in options.machine or MACHINES:
        for case in options.cases or (*CHAINS, *LLAMA):
            row = compare(machine, case, options.devices, options.schedule, options.time_limit)
            print(
                f"{machine:<10} {case:<8} {row.naive_ms:>10.3f} {row.found_ms:>10.3f} {row.free_ms:>10.3f}"
                f" {row.gain:>6.3f} {row.seconds:>9.1f}",
                flush=True,
            )
            rows.append(row)
    results = verdicts(rows)
    for words, holds in results:
        print(f"{'ok    ' if holds else 'MISSED'} {words}")
    return 0 if all(holds for _, holds in results) else 1


if __name__ == "__main__":
    sys.exit(main())
