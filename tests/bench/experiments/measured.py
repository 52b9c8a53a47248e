"""The experiments measured on the backend at hand: two rounds to warm up, ten that are timed, means with 95% intervals.

    python -m tests.bench.experiments.measured [--backend auto] [--sites 1,4,8] [--draws 20] [WORKLOAD]...

On GPUs the workloads have their full size, PyTorch runs over NCCL and JAX beside it, each in a process of its own, one
after the other. On the CPU they are smaller. `--rehearse` takes the way of GPUs without one, at sizes whose times mean
nothing. What was measured already is not measured again. The files are written into the folder `--output`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tests.bench.experiments.configurations import (
    BLOCKS,
    CHAINS,
    OBJECTIVES,
    WORKLOADS,
    Configuration,
)
from tests.bench.experiments.contender import (
    CPU,
    CUDA,
    EINC,
    JAX,
    REHEARSAL,
    TIMED,
    TORCH,
    Entry,
    Measured,
)
from tests.bench.experiments.runner import CACHE, ROOT, Say, digest_sources
from tests.bench.experiments.tables import Cell, Table, format_csv, mean, title
from tests.bench.report import machine

STUDENT = 2.262
"""The quantile 0.975 of Student's t with nine degrees of freedom, one less than the timed rounds."""

PATIENCE = 900.0
"""Seconds after which a contender is given up."""

SOURCES = ("einc", "runtime", "grammars", "models", "tests/gpu", "tests/bench")
"""What a measurement depends on."""

Findings = dict[Entry, Measured]


def describe_entries(backend: str, sites: tuple[int, ...], draws: int, workloads: tuple[str, ...]) -> list[Entry]:
    """What is measured: plans of every selector and schedule on most sites, and the others on all numbers of sites."""
    machine_name = "host" if backend == CPU else "" if backend == CUDA else "dgx-a100"
    found = []
    for workload, n in product(workloads, sites):
        found += [
            Entry(Configuration(workload, machine_name, n, selector=selector), EINC, backend) for selector in OBJECTIVES
        ]
        plain = Configuration(workload, machine_name, n, schedule="naive")
        ways = ("",) if n == 1 else ("rows",) if workload in CHAINS else ("batch", "sequence")
        found += [Entry(plain, TORCH, backend, how) for how in ways] + [Entry(plain, JAX, backend)]
    for workload in workloads:
        most = Configuration(workload, machine_name, max(sites))
        found += [
            Entry(Configuration(workload, machine_name, most.sites, selector=s, schedule="naive"), EINC, backend)
            for s in OBJECTIVES
        ]
        found.append(Entry(Configuration(workload, machine_name, most.sites, selector="greedy"), EINC, backend))
        found += [
            Entry(Configuration(workload, machine_name, most.sites, selector="random", seed=seed), EINC, backend)
            for seed in range(draws)
        ]
    return list(dict.fromkeys(found))


def measure_all(entries: list[Entry], cache: Path, say: Say) -> Findings:
    """Each in a process of its own, one after the other; those that were measured are read."""
    cache.mkdir(parents=True, exist_ok=True)
    found: Findings = {}
    for position, entry in enumerate(entries, 1):
        text = json.dumps(asdict(entry), sort_keys=True)
        path = cache / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        if not path.exists():
            _measure_apart(text, path)
        found[entry] = Measured(**json.loads(path.read_text(encoding="utf-8")))
        own = found[entry]
        what = own.problem or interval(own)
        rivals = [
            (statistics.fmean(other.times), each)
            for each, other in found.items()
            if other.times and _task(each) == _task(entry)
        ]
        least = min(rivals, key=lambda pair: pair[0]) if rivals else None
        best = f"; best so far {least[0]:.2f} ms, {least[1].contender} {least[1].how}".rstrip() if least else ""
        say(f"[{position}/{len(entries)}] {entry.title}: {what}{best}")
    return found


def _task(entry: Entry) -> tuple[str, int]:
    return entry.configuration.workload, entry.configuration.sites


def _measure_apart(text: str, path: Path) -> None:
    """Its result is written when it is whole; a process that dies or does not end is a result, too."""
    draft = path.with_suffix(".draft")
    command = [sys.executable, "-m", "tests.bench.experiments.contender", text, str(draft)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        if not draft.exists():
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            draft.write_text(json.dumps({"problem": f"exit code {done.returncode}: {last}"[:300]}), encoding="utf-8")
    except subprocess.TimeoutExpired:
        draft.write_text(json.dumps({"problem": f"no answer in {PATIENCE:.0f} s"}), encoding="utf-8")
    draft.replace(path)


def half_width(times: tuple[float, ...]) -> float:
    """Of the 95% interval around the mean of ten rounds."""
    assert len(times) == TIMED
    return STUDENT * statistics.stdev(times) / math.sqrt(TIMED)


def interval(measured: Measured) -> str:
    return f"{statistics.fmean(measured.times):.2f} ± {half_width(measured.times):.2f} ms"


def tabulate(found: Findings) -> list[Table]:
    """Experiments 1 and 2 (systems), 3 (selectors), 4 (exchanges) and 5 (what foretells the time)."""
    sites = sorted({entry.configuration.sites for entry in found})
    return [
        *(_systems(found, group, members) for group, members in (("blocks", BLOCKS), ("chains", CHAINS))),
        _selectors(found, sites[-1]),
        _foretold(found, sites[-1]),
    ]


def _systems(found: Findings, group: str, members: tuple[str, ...]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for entry, own in compare_systems(found):
        if entry.configuration.workload in members:
            known = (statistics.fmean(own.times), half_width(own.times)) if own.times else (None, None)
            each, remark = entry.configuration, own.problem or own.note
            rows.append((title(each.workload), each.sites, name(entry), *known, own.predicted_ms or None, remark))
    columns = ("workload", "sites", "system", "mean ms", "± (95%)", "predicted ms", "remarks")
    return Table(f"systems, {group}", f"Means of {TIMED} rounds with 95% intervals: {group}.", columns, tuple(rows))


def compare_systems(found: Findings) -> list[tuple[Entry, Measured]]:
    """The optimizers' plans, PyTorch and JAX, by workload and number of sites."""
    return [
        (entry, own)
        for entry, own in found.items()
        if entry.contender != EINC
        or (entry.configuration.selector in OBJECTIVES and entry.configuration.schedule == "synthesized")
    ]


def name(entry: Entry) -> str:
    """Of a system."""
    if entry.contender == EINC:
        return f"einc, {entry.configuration.selector}"
    return f"{entry.contender} by {entry.how}" if entry.how else entry.contender


def _selectors(found: Findings, most: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for workload in _workloads(found):
        own = {
            (selector, schedule): _mean_of(found, workload, most, selector, schedule)
            for selector in (*OBJECTIVES, "greedy")
            for schedule in ("synthesized", "naive")
        }
        random = [statistics.fmean(measured.times) for measured in _random(found, workload, most)]
        middle = statistics.median(random) if random else None
        cells = [own[selector, "synthesized"] for selector in (*OBJECTIVES, "greedy")]
        naive = [own[selector, "naive"] for selector in OBJECTIVES]
        rows.append((title(workload), *cells, min(random, default=None), middle, *naive))
    rows.append(("geometric mean", *(mean([row[n] for row in rows]) for n in range(1, len(rows[0])))))  # type: ignore
    columns = ["workload", *(f"`{s}`" for s in (*OBJECTIVES, "greedy")), "random, best", "median"]
    columns += [f"`{s}`, naive" for s in OBJECTIVES]
    return Table("selectors", f"Mean ms of plans on {most} sites.", tuple(columns), tuple(rows))


def _foretold(found: Findings, most: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for workload in _workloads(found):
        plans = _random(found, workload, most)
        times = [statistics.fmean(measured.times) for measured in plans]
        costs, predicted = [plan.cost for plan in plans], [plan.predicted_ms for plan in plans]
        ratios = [time / guess for time, guess in zip(times, predicted, strict=True)]
        middle = statistics.median(ratios) if ratios else None
        rows.append((title(workload), _r(costs, times), _r(predicted, times), middle, len(plans)))
    columns = ("workload", "r of cost", "r of predicted time", "measured over predicted, median", "plans")
    caption = f"Pearson's r with measured times over random plans on {most} sites."
    return Table("foretold", caption, columns, tuple(rows), digits=2)


def _r(given: list[float], times: list[float]) -> float | None:
    return statistics.correlation(given, times) if len(set(given)) > 1 and len(set(times)) > 1 else None


def _workloads(found: Findings) -> list[str]:
    return [workload for workload in WORKLOADS if any(e.configuration.workload == workload for e in found)]


def _random(found: Findings, workload: str, sites: int) -> list[Measured]:
    return [
        own
        for entry, own in found.items()
        if own.times and _task(entry) == (workload, sites) and entry.configuration.selector == "random"
    ]


def _mean_of(found: Findings, workload: str, sites: int, selector: str, schedule: str) -> float | None:
    for entry, own in found.items():
        each = entry.configuration
        key = (entry.contender, each.workload, each.sites, each.selector, each.schedule)
        if own.times and key == (EINC, workload, sites, selector, schedule):
            return statistics.fmean(own.times)
    return None


def write_files(found: Findings, backend: str, command: str, folder: Path) -> None:
    """JSON with every round, CSV with the tables, a page and a plot."""
    from tests.bench.experiments.plots import draw_measured

    folder.mkdir(parents=True, exist_ok=True)
    records = [asdict(entry) | asdict(own) for entry, own in found.items()]
    lines = ",\n".join(json.dumps(record) for record in records)
    (folder / "measured.json").write_text(
        f'{{"backend": {json.dumps(backend)}, "machine": {json.dumps(machine())}, "entries": [\n{lines}\n]}}\n'
    )
    tables = tabulate(found)
    (folder / "measured.csv").write_text(format_csv(tables), encoding="utf-8")
    draw_measured(found, folder / "measured.svg")
    scale = {CUDA: "at full size", CPU: "made smaller", REHEARSAL: "a rehearsal: its times mean nothing"}[backend]
    page = [f"# Experiments, measured on {backend}", f"`{command}`: the workloads {scale}; {machine()}"]
    page += [table.markdown() for table in tables] + ["![means with 95% intervals](measured.svg)"]
    (folder / "measured.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")


def find_backend() -> str:
    from einc.machines.detect import find_visible_gpus

    return CPU if find_visible_gpus() is None else CUDA


def find_sites(backend: str) -> tuple[int, ...]:
    """1, 4 and 8, as far as there are GPUs; on the CPU 1, a site for each core, and 8."""
    if backend == CPU:
        return tuple(sorted({1, len(os.sched_getaffinity(0)), 8}))
    if backend == REHEARSAL:
        return (1, 2)
    from einc.machines.detect import find_visible_gpus

    gpus = find_visible_gpus()
    count = len(gpus.sites) if gpus is not None else 0
    return tuple(n for n in (1, 4, 8) if n <= count) if count != 2 else (1, 2)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.experiments.measured", description=__doc__.splitlines()[0]
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"any of {', '.join(WORKLOADS)}")
    parser.add_argument("--backend", choices=("auto", CPU, CUDA), default="auto")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, with a fake of its driver")
    parser.add_argument("--sites", type=lambda text: tuple(int(n) for n in text.split(",")))
    parser.add_argument("--draws", type=int, default=20, help="random plans for each workload")
    parser.add_argument("--output", type=Path, default=CACHE / "measured", metavar="FOLDER")
    options = parser.parse_args(arguments)
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"there is no workload {min(unknown)}")
    backend = REHEARSAL if options.rehearse else find_backend() if options.backend == "auto" else options.backend
    sites = options.sites or find_sites(backend)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.0f} s  {text}", flush=True)

    entries = describe_entries(backend, sites, options.draws, tuple(options.workloads) or WORKLOADS)
    here = hashlib.sha256(machine().encode()).hexdigest()[:8]
    try:
        found = measure_all(entries, CACHE / f"measured-{digest_sources(SOURCES)}-{here}", say)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from here")
        return 130
    for table in tabulate(found):
        print(f"\n{table.markdown()}")
    chosen = [*options.workloads, "--sites", ",".join(map(str, sites)), "--draws", str(options.draws)]
    command = " ".join(["python -m tests.bench.experiments.measured", *chosen])
    write_files(found, backend, command, options.output)
    say(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
