"""Predicted times against measured ones: random plans of the ten workloads, on this computer's cores.

Each workload is scaled so that a run takes 50 to 500 ms. For every number of sites, plans with random cuts are drawn,
prepared, and run in rounds, in an order that changes. A round counts for a plan if other programs used less than a
twentieth of a core meanwhile; the rest is tried again, a few times. A plan's time is the median of the rounds that
count, or the least of all rounds where none does. `r` is Pearson's correlation of predicted and measured times over the
plans. `again` is that of the medians of odd and of even rounds: where it is low, plans differ by less than the
measurements do, and no prediction can reach more.

    python -m tests.bench.truth [--machine mine.json] [--draws 20] [--sites 2 8] [--rounds 6] [--csv FILE] [CASE]...

Without --machine, the computer is calibrated first. --write puts the table into docs/predicted-time.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.bench.cases import MODELS

PAGE = MODELS.parent / "docs" / "predicted-time.md"
MARKS = "<!-- truth -->", "<!-- end of truth -->"
QUIET = 0.05
"""Seconds of processor time of other programs, per second, in a round that counts."""
TRIES = 3
TARGET_R, TARGET_RATIO = 0.95, 0.15

Definitions = tuple[tuple[str, str], ...]


def _block(lengths: str, width: int, heads: int, groups: int, head: int, inner: int) -> tuple[str, Definitions]:
    sizes = {"d_model": width, "heads_q": heads, "heads_kv": groups, "d_head": head, "d_ff": inner}
    return "llama_block", (*((name, str(size)) for name, size in sizes.items()), ("seq_lens", lengths))


CASES: dict[str, tuple[str, Definitions]] = {
    **{f"chain_{name}": (f"chain_{name}", (("scale", scale),)) for name, scale in zip("abcde", "85488", strict=True)},
    "b1x1k": _block("[512]", 1024, 16, 4, 64, 3584),
    "b1x8k": _block("[2048]", 512, 8, 2, 64, 1792),
    "b1x128k": _block("[4096]", 256, 8, 2, 32, 896),
    "b8x1k": _block("[256]*8", 512, 8, 2, 64, 1792),
    "b128x1k": _block("[64]*128", 256, 8, 2, 32, 896),
}  # fmt: skip
"""Model and definitions: every index of the workload is cut down, and the number of sequences stays."""


@dataclass(frozen=True)
class Plan:
    """One plan: milliseconds predicted and measured; `rounds` are all times, `quiet` how many of them count."""

    case: str
    sites: int
    seed: int
    predicted_ms: float
    measured_ms: float
    odd_ms: float
    even_ms: float
    quiet: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """What is told of some plans: how many, the range of measured times, r, r of the measurements again, and ratios."""

    name: str
    plans: int
    least_ms: float
    most_ms: float
    r: float
    again: float
    ratio: float
    low: float
    high: float

    @staticmethod
    def of(name: str, plans: Sequence[Plan]) -> Row:
        measured = [plan.measured_ms for plan in plans]
        ratios = [plan.predicted_ms / plan.measured_ms for plan in plans]
        low, middle, high = statistics.quantiles(ratios, n=4)
        r = correlate([plan.predicted_ms for plan in plans], measured)
        again = correlate([plan.odd_ms for plan in plans], [plan.even_ms for plan in plans])
        return Row(name, len(plans), min(measured), max(measured), r, again, middle, low, high)


def correlate(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one of the two does not vary."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    return statistics.correlation(first, second)


def read_other_load() -> float | None:
    """Seconds of processor time that other programs have used since the start, or None where the system hides it."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    own = os.times()
    busy = sum(fields) - fields[3] - fields[4]
    return busy / os.sysconf("SC_CLK_TCK") - own.user - own.system


def measure_case(case: str, sites: int, machine, draws: int, rounds: int) -> list[Plan]:
    """The plans of a workload, predicted on the machine and measured here."""
    from einc.calibration.models import Probe
    from einc.calibration.samples import compile_probe
    from einc_runtime.execution.data.random_arrays import make_random_array
    from einc_runtime.execution.session import Session

    model, definitions = CASES[case]
    text = (MODELS / f"{model}.ein").read_text()
    target = machine.restrict(range(sites))
    bundles = [compile_probe(Probe(text, definitions, "f32", seed), target) for seed in range(draws)]
    sessions = []
    for bundle in bundles:
        session = Session(bundle, "cpu")
        session.load_all({t.name: make_random_array(t, 0) for t in bundle.tensors if t.kind != "value"})
        session.execute()
        sessions.append(session)
    times: list[list[float]] = [[] for _ in sessions]
    counted: list[list[float]] = [[] for _ in sessions]
    order = random.Random(sites)
    for _ in range(rounds * TRIES):
        missing = [k for k, own in enumerate(counted) if len(own) < rounds]
        for k in order.sample(missing, len(missing)):
            before, start = read_other_load(), time.perf_counter()
            times[k].append(sessions[k].execute())
            seconds, after = time.perf_counter() - start, read_other_load()
            if before is None or after is None or after - before <= max(QUIET * seconds, 0.011):  # one tick
                counted[k].append(times[k][-1])
    for session in sessions:
        session.close()
    found = []
    for seed, (bundle, own, every) in enumerate(zip(bundles, counted, times, strict=True)):
        halves = halve(own, every)
        middle = statistics.median(own) if own else min(every)
        found.append(Plan(case, sites, seed, bundle.predicted_ms, middle, *halves, len(own), tuple(every)))
    return found


def halve(counted: Sequence[float], every: Sequence[float]) -> tuple[float, float]:
    """A plan's time by the odd and by the even rounds: their medians, or their least times where too few count."""
    if len(counted) > 1:
        return statistics.median(counted[::2]), statistics.median(counted[1::2])
    return min(every[::2]), min(every[1::2])


def predict_again(plans: Sequence[Plan], machine) -> list[Plan]:
    """Plans that were measured before, with their times as they are predicted now."""
    from einc.calibration.models import Probe
    from einc.calibration.samples import compile_probe

    found = []
    for plan in plans:
        model, definitions = CASES[plan.case]
        probe = Probe((MODELS / f"{model}.ein").read_text(), definitions, "f32", plan.seed)
        predicted = compile_probe(probe, machine.restrict(range(plan.sites))).predicted_ms
        halves = (plan.odd_ms, plan.even_ms) if plan.quiet > 1 else halve((), plan.rounds)
        found.append(replace(plan, predicted_ms=predicted, odd_ms=halves[0], even_ms=halves[1]))
    return found


def format_rows(rows: Sequence[Row], processor: str, plans: Sequence[Plan]) -> list[str]:
    """A table in Markdown."""
    counted, every = sum(plan.quiet for plan in plans), sum(len(plan.rounds) for plan in plans)
    lines = [
        "| workload, sites | plans | measured ms | r | r again | predicted / measured: median (middle half) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.name} | {row.plans} | {row.least_ms:.0f} to {row.most_ms:.0f} | {row.r:.2f} | {row.again:.2f} "
        f"| {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) |"
        for row in rows
    ]
    return [*lines, "", f"<sub>{processor}; {counted} of {every} runs count</sub>"]


def judge(rows: Sequence[Row]) -> list[str]:
    """Which targets are reached."""
    own = [row for row in rows if "," in row.name]
    reached = sum(row.r >= TARGET_R for row in own)
    near = sum(abs(row.ratio - 1) <= TARGET_RATIO for row in own)
    return [
        f"- r of at least {TARGET_R}: {reached} of {len(own)} workloads and numbers of sites",
        f"- median ratio within {TARGET_RATIO:.0%}: {near} of {len(own)}",
    ]


def write_page(lines: Sequence[str]) -> None:
    """Puts lines between the marks of the page."""
    text = PAGE.read_text()
    before, rest = text.split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text("\n".join([before + MARKS[0], *lines, MARKS[1]]) + after)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.truth", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of {', '.join(CASES)}; all by default")
    parser.add_argument("--machine", metavar="FILE", help="a machine file of `einc machine calibrate --host`")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every plan")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every plan and the table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/predicted-time.md")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="predict the plans of a --json file again")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"there is no case {min(unknown)}")
    if options.draws < 3:
        parser.error("quartiles take three draws or more")

    from einc.calibration.machine import calibrate_host
    from einc.machines.load import load_machine

    machine = load_machine(options.machine) if options.machine else calibrate_host(max(options.sites)).machine
    plans: list[Plan] = []
    rows: list[Row] = []
    before: list[Plan] = []
    if options.measured:
        known = json.loads(options.measured.read_text())["plans"]
        before = [Plan(**{**plan, "rounds": tuple(plan["rounds"])}) for plan in known]
    for case in options.cases or CASES:
        for sites in options.sites:
            if before:
                found = predict_again([p for p in before if (p.case, p.sites) == (case, sites)], machine)
            else:
                found = measure_case(case, sites, machine, options.draws, options.rounds)
            plans += found
            rows.append(Row.of(f"{case}, {sites}", found))
            print("\n".join(format_rows(rows[-1:], machine.measured, found)[2:3]), flush=True)
    if len(rows) > 1:
        rows.append(Row.of("all", plans))
    table = [*format_rows(rows, machine.measured, plans), "", *judge(rows)]
    print("\n".join(["", *table]))
    if options.csv:
        with options.csv.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(asdict(plans[0])))
            writer.writeheader()
            writer.writerows({**asdict(plan), "rounds": " ".join(f"{ms:.3f}" for ms in plan.rounds)} for plan in plans)
    if options.json:
        options.json.write_text(
            json.dumps({"plans": [asdict(plan) for plan in plans], "rows": [asdict(row) for row in rows]}, indent=1)
        )
    if options.write:
        write_page(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
