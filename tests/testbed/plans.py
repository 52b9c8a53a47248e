"""Whole plans on limited links: ranks over MPI in namespaces, and the times that were predicted for their machine.

    python -m tests.testbed.plans [--mbits R] [--repeat N] [--only WORD] [-o MACHINE.json]

Says which plans that move data for nine tenths of their time or more are not within 10% of their prediction, and how
predicted and measured times are correlated; and the same of a prediction that goes by the rules of ranks over MPI
(`ranks.py`), which are not those of plans. Exits 1 where a plan is not within 50% of its prediction. Without root or
MPI, it says so in one line and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from einc.compiler import compile_model
from einc.machines.load import format_machine
from einc.machines.model import Machine, Resource, Site
from einc.options import CompileOptions
from einc.predict.timeline import predict
from einc_runtime.plan.codec import encode
from einc_runtime.plan.schema import Bundle, TransferTask

from .network import Unsupported
from .ranks import predict_ranks_ms
from .star import Star, star

ROOT = Path(__file__).resolve().parents[2]
SITES = 8
LINKS_DOMINATE = 0.9
"""Links dominate in a plan whose predicted time is, to this part, the same on sites that compute in no time."""

TOLERANCE, BROKEN = 0.10, 0.50
PORT_SECONDS = 1.5

LLAMA = {"n_layers": 2, "d_model": 256, "heads_q": 8, "heads_kv": 8, "d_head": 32, "d_ff": 704, "vocab": 512}
BLOCK = {"d_model": 512, "heads_q": 8, "heads_kv": 8, "d_head": 64, "d_ff": 1408}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "block": ("llama_block", {"seq_lens": "[256] * 4", **BLOCK}),
    "chain A": ("chain_a", {"scale": 16}),
    "chain B": ("chain_b", {"scale": 16}),
    "chain C": ("chain_c", {"scale": 16}),
    "chain D": ("chain_d", {"scale": 16}),
    "chain E": ("chain_e", {"scale": 32}),
    "prefill": ("llama", {"batch": 8, "length": 96, **LLAMA}),
    "decode": ("llama_decode", {"batch": 64, "cache": 64, **LLAMA}),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, its predicted time, and the part of it that links alone would take."""

    name: str
    bundle: Bundle
    predicted_ms: float
    share_of_links: float


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of a plan: its time by the rules of ranks, and the median of the measured ones."""

    case: Case
    ranks_ms: float
    measured_ms: float


def main() -> int:
    parser = make_parser("plans", "Whole plans on real links.")
    parser.add_argument("--only", default="", help="only plans whose name has this in it")
    parser.add_argument("-o", "--output", help="write the measured machine file")
    options = parser.parse_args()

    def compare(built: Star, launcher: str, machine: Machine) -> int:
        if options.output:
            Path(options.output).write_text(format_machine(machine))
        return _compare(built, launcher, machine, options.repeat, options.only)

    return run_in_testbed(options.mbits, compare)


def make_parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options of all commands that run plans in the testbed."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.testbed.{name}", description=description)
    parser.add_argument("--mbits", type=float, default=8.0, help="Mbit/s of a port in each direction (8)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each plan, of which the median counts (3)")
    return parser


def run_in_testbed(mbits: float, compare: Callable[[Star, str, Machine], int]) -> int:
    """What `compare` returns for a star, MPI's launcher and the measured machine; 0 where there can be none."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    launcher = _find_launcher()
    if launcher is None or find_spec("mpi4py") is None:
        print("plans in the testbed skipped: there is no MPI (pip install '.[mpi]')")
        return 0
    try:
        with star(SITES, mbits) as built:
            machine = measure_machine(built, launcher, mbits)
            _describe(machine, mbits)
            return compare(built, launcher, machine)
    except Unsupported as reason:
        print(f"plans in the testbed skipped: {reason}")
        return 0


def measure_machine(built: Star, launcher: str, mbits: float) -> Machine:
    """The machine file of a star: one resource for each direction of each port, and equal sites."""
    size = int(mbits * 1e6 / 8 * PORT_SECONDS)
    found = json.loads(_run(built, launcher, "tests.testbed.star_speeds", str(size)))
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    latency = max(one["latency"] for one in found)
    site = Site(_digits(middle["bytes"] / 1e9), 2**30, (("f32", _digits(middle["flops"])),))
    others = [[other for other in range(SITES) if other != own] for own in range(SITES)]
    rate = _digits(middle["rate"] / 1e9)
    resources = [Resource(f"{own} out", rate, tuple((own, other) for other in others[own])) for own in range(SITES)]
    resources += [Resource(f"{own} in", rate, tuple((other, own) for other in others[own])) for own in range(SITES)]
    latencies = _digits(latency * 1e6), _digits(middle["call"] * 1e6)
    return Machine("star", (site,) * SITES, tuple(resources), *latencies)


def list_cases(machine: Machine, only: str) -> Iterator[Case]:
    """Every model, with naive exchanges and with synthesized ones. Plans cut all operators as the paper's cost says,
    since the fastest plans for such links would use one site."""
    free = replace(machine, sites=(Site(1e6, 2**40),) * SITES, kernel_latency_us=0.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "star.json")
        file.write_text(format_machine(machine))
        for name, (model, definitions) in MODELS.items():
            for schedule in ("naive", "synthesized"):
                if only in f"{name}, {schedule}":
                    text = (ROOT / "models" / f"{model}.ein").read_text()
                    given = tuple((key, str(value)) for key, value in definitions.items())
                    options = CompileOptions(str(file), SITES, given, None, "f32", "eindecomp", schedule)
                    bundle = compile_model(text, f"{model}.ein", options).bundle
                    predicted = predict(bundle, machine).timeline.predicted_ms
                    yield Case(
                        f"{name}, {schedule}",
                        bundle,
                        predicted,
                        predict(bundle, free).timeline.predicted_ms / predicted,
                    )


def _compare(built: Star, launcher: str, machine: Machine, repeat: int, only: str) -> int:
    began, rows = time.monotonic(), []
    print("| plan | messages | links' share | predicted ms | of ranks ms | measured ms | / predicted | / of ranks |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for case in list_cases(machine, only):
        times, messages = run_plan(built, launcher, case.bundle, repeat)
        row = Row(case, predict_ranks_ms(case.bundle, machine), statistics.median(times))
        rows.append(row)
        numbers = f"{messages} | {case.share_of_links:.2f} | {case.predicted_ms:.0f} | {row.ranks_ms:.0f}"
        ratios = f"{row.measured_ms / case.predicted_ms:.3f} | {row.measured_ms / row.ranks_ms:.3f}"
        print(f"| {case.name} | {numbers} | {row.measured_ms:.0f} | {ratios} |", flush=True)
    if not rows:
        print(f"no plan has {only!r} in its name", file=sys.stderr)
        return 2
    dominated = sum(row.case.share_of_links >= LINKS_DOMINATE for row in rows)
    print(f"\n{len(rows)} plans; links dominate in {dominated}; {time.monotonic() - began:.0f} s")
    _judge("predicted", rows, [row.case.predicted_ms for row in rows])
    _judge("of ranks", rows, [row.ranks_ms for row in rows])
    return int(any(abs(row.measured_ms / row.case.predicted_ms - 1) > BROKEN for row in rows))


def _judge(kind: str, rows: list[Row], expected_ms: list[float]) -> None:
    """Prints how far measured times are from those of one prediction."""
    times = list(zip(rows, expected_ms, strict=True))
    dominated = [(row, expected) for row, expected in times if row.case.share_of_links >= LINKS_DOMINATE]
    missed = [row.case.name for row, expected in dominated if abs(row.measured_ms / expected - 1) > TOLERANCE]
    pairs = np.array([(expected, row.measured_ms) for row, expected in times])
    correlation = f"{np.corrcoef(pairs.T)[0, 1]:.4f}" if len(pairs) > 2 else "none"
    listed = f" (not {'; '.join(missed)})" if missed else ""
    print(f"{kind}: {len(dominated) - len(missed)} of {len(dominated)} within {TOLERANCE:.0%}{listed};", end=" ")
    print(f"correlation of all {correlation}")


def run_plan(built: Star, launcher: str, bundle: Bundle, repeat: int) -> tuple[list[float], int]:
    """Milliseconds of each run, after one that is not counted; and how many messages cross ports in a run."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.bin")
        plan.write_bytes(encode(bundle))
        more = ("--inputs", "rand:1", "--weights", "rand:2", "--repeat", str(repeat + 1), "--json")
        document = json.loads(_run(built, launcher, "einc", "run", str(plan), *more))
    sites = [
        bundle.buffers[one.write.buffer].site != bundle.buffers[one.read.buffer].site for one in _transfers(bundle)
    ]
    return document["ms"][1:], sum(sites)


def _transfers(bundle: Bundle) -> list[Any]:
    return [task for task in bundle.tasks if isinstance(task, TransferTask)]


def _run(built: Star, launcher: str, module: str, *words: str) -> str:
    command = [*built.mpiexec(launcher, 1), sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=300)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


def _describe(machine: Machine, mbits: float) -> None:
    site, port = machine.sites[0], machine.resources[0]
    print(f"{SITES} ports at {port.gbs * 8e3 / mbits:.3f} of their nominal rate of {mbits:g} Mbit/s,", end=" ")
    print(
        f"messages take {machine.transfer_latency_us / 1e3:.2f} ms, calls {machine.kernel_latency_us:.1f} us;", end=" "
    )
    print(
        f"a site computes {dict(site.flops)['f32'] / 1e9:.1f} GFLOP/s and moves {site.hbm_gbs:.1f} GB/s\n", flush=True
    )


def _find_launcher() -> str | None:
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _digits(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


if __name__ == "__main__":
    sys.exit(main())
