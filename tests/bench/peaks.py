"""What it costs to plan for a GPU's peaks: the plan that peaks would choose, timed as GPUs were measured.

    python -m tests.bench.peaks [--case NAME]... [--machine NAME]... [--sites P]... [--processes 2] [--write]

Every workload is planned twice: for the machine as it was measured, and for one that reaches the peaks of its GPUs,
memory and links, with the same latencies and the same memory. Then both plans are timed on the machine as it was
measured. `--write` puts the table into docs/peaks.md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from einc.compiler import Compiled, compile_model
from einc.machines.load import format_machine
from einc.options import CompileOptions
from einc.predict.timeline import predict
from tests.bench.experiments.configurations import BLOCKS, CHAINS, MODELS, TITLES
from tests.bench.optimality import DECODES
from tests.support.peak_machines import load_at_peak

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peaks.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
MACHINES = ("dgx-a100", "dgx-h100")
SITES = (8,)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Milliseconds: the plan chosen, the plan that peaks choose, and what peaks promise of that."""

    workload: str
    machine: str
    sites: int
    chosen_ms: float
    peak_plan_ms: float
    promised_ms: float
    changed: bool

    @property
    def price(self) -> float:
        """The time of the plan that peaks choose, over that of the chosen one."""
        return self.peak_plan_ms / self.chosen_ms


def compare(case: tuple[str, str, int]) -> Comparison:
    """Plans a workload for a machine and for its peaks."""
    workload, machine, sites = case
    chosen = _compile(workload, machine, sites)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(format_machine(load_at_peak(machine)))
        file.flush()
        believed = _compile(workload, file.name, sites)
        promised_ms = believed.program.predicted_ms  # stages are lazy, and read the file
    return Comparison(
        workload,
        machine,
        sites,
        chosen.program.predicted_ms,
        predict(believed.program, chosen.target.machine).timeline.predicted_ms,
        promised_ms,
        _list_cuts(chosen) != _list_cuts(believed),
    )


def _compile(workload: str, machine: str, sites: int) -> Compiled:
    model = workload if workload in CHAINS else "llama_decode" if workload in DECODES else "llama_block"
    options = CompileOptions(
        machine=machine,
        devices=sites,
        definitions=DECODES.get(workload, ()),
        preset=workload if workload in BLOCKS else None,
    )
    return compile_model((MODELS / f"{model}.ein").read_text(encoding="utf-8"), f"{model}.ein", options)


def _list_cuts(compiled: Compiled) -> list[object]:
    return [choice.candidate for choice in compiled.plan.choices]


def tabulate(rows: Sequence[Comparison]) -> str:
    """The table of the page, and what it comes to."""
    lines = [
        "| workload | machine, sites | chosen, ms | the plan of peaks, ms | its price | peaks promise, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        price = f"{row.price:.2f}" if row.changed else f"{row.price:.2f} (the same cuts)"
        lines.append(
            f"| {TITLES.get(row.workload, row.workload)} | {row.machine}, {row.sites} | {row.chosen_ms:.3f} "
            f"| {row.peak_plan_ms:.3f} | {price} | {row.promised_ms:.3f} |"
        )
    changed = [row for row in rows if row.changed]
    mean = math.exp(sum(math.log(row.price) for row in rows) / len(rows))
    worst = max(rows, key=lambda row: row.price)
    promised = median(row.peak_plan_ms / row.promised_ms for row in rows)
    lines += [
        "",
        f"- {len(changed)} of {len(rows)} plans have other cuts.",
        f"- The plans of peaks take {mean:.2f} times as long as the chosen ones in the geometric mean, at most "
        f"{worst.price:.2f} times ({TITLES.get(worst.workload, worst.workload)} on {worst.sites} of {worst.machine}).",
        f"- They take {promised:.2f} times as long as peaks promise, in the median.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What it costs to plan for peaks.")
    parser.add_argument("--case", action="append", choices=(*BLOCKS, *CHAINS, *DECODES))
    parser.add_argument("--machine", action="append")
    parser.add_argument("--sites", action="append", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    cases = [
        (workload, machine, sites)
        for workload in options.case or (*CHAINS, *BLOCKS, *DECODES)
        for machine in options.machine or MACHINES
        for sites in options.sites or SITES
    ]
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(compare, cases):
            print(f"{row.workload}, {row.sites} of {row.machine}: {row.chosen_ms:.3f} ms, {row.price:.3f}", flush=True)
            rows.append(row)
    table = tabulate(rows)
    print(table)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.partition(MARKS[0])[0], text.partition(MARKS[1])[2]
        PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
