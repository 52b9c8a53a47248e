"""The stages of the check after the probes: kernels, correctness, ceilings and benchmarks, each in workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter

from tests.gpu.ceilings import Ceilings
from tests.gpu.findings import Findings
from tests.gpu.places import Place
from tests.gpu.primitives import PEERS
from tests.gpu.processes import Start, Worker, brief

CASE_LIMIT, BENCHMARK_LIMIT = 90.0, 150.0
ENOUGH = 20.0
"""Seconds without which no benchmark is begun."""
FOR_CEILINGS = 40.0

Save = Callable[[], None]


def compile_kernels(findings: Findings, seconds: float, start: Start = Worker) -> None:
    """What is not compiled here is compiled when it is needed."""
    worker = start("kernels", f"{seconds:.0f}")
    try:
        record = worker.record(seconds + 30)
    except TimeoutError:
        record = None
    code, complaint = worker.end()
    findings.kernels = record or {"problem": f"exit code {code}, {brief(complaint)}"}


def check_all(findings: Findings, place: Place, deadline: float, save: Save, start: Start = Worker) -> None:
    """Runs the cases of correctness that are not over, with a new worker after every one that was lost, until the
    deadline.

    After one was lost in which a library may have computed attention, our own kernel computes it everywhere.
    """
    from einc_runtime.environment import ATTENTION
    from einc_runtime.kernels.cuda.attention_libraries import EINC_KERNEL

    runs = place.runs()
    titles = [run.title for run in runs]
    position = findings.checked
    while position < len(titles):
        worker, running = start("correctness", str(position)), position
        why = ""
        try:
            while (record := worker.record(min(CASE_LIMIT, deadline - perf_counter()))) is not None:
                if "start" in record:
                    running = record["start"]
                else:
                    take = findings.unchecked.append if record.get("unchecked") else findings.take_check
                    take(record)
                    position = findings.checked = record["position"] + 1
                    save()
        except TimeoutError:
            why = "no answer in time"
        code, complaint = worker.end()
        if perf_counter() >= deadline:
            break
        ended = position <= running or bool(findings.checks and code and findings.checks[-1]["problem"])
        if ended and runs[running].case.uses_libraries and ATTENTION not in os.environ:
            os.environ[ATTENTION] = EINC_KERNEL  # the fault may be a library's, and would cost all other cases
            findings.own_attention = titles[running]
        if position < len(titles) and position <= running:
            findings.lost.append(f"{titles[running]}: {why or f'exit code {code}, {brief(complaint)}'}")
            findings.complaints[titles[running]] = complaint
            position = findings.checked = running + 1
    findings.left += titles[position:]


def measure_ceilings(findings: Findings, start: Start = Worker) -> None:
    """What this GPU can do at most; without it, steps are held against nothing."""
    worker = start("ceilings")
    record = None
    try:
        record = worker.record(FOR_CEILINGS)
    except TimeoutError:
        findings.ceilings = {"problem": "no answer in time"}
    code, complaint = worker.end()
    if record is not None:
        findings.ceilings = record
    elif not findings.ceilings:
        findings.ceilings = {"problem": f"exit code {code}, {brief(complaint)}"}


def measure_links(findings: Findings, place: Place, seconds: float, start: Start = Worker) -> None:
    """The speed of copies between GPUs, where there are two or more."""
    if place.gpus < 2 or PEERS in place.broken:
        return
    worker = start("links")
    try:
        record = worker.record(seconds)
    except TimeoutError:
        record = None
    code, complaint = worker.end()
    findings.links = record or {"problem": f"exit code {code}, {brief(complaint)}"}


def benchmark_all(findings: Findings, deadline: float, save: Save, start: Start = Worker) -> None:
    """Runs the benchmarks likewise; of one that is lost, what it had found before that counts."""
    from tests.gpu.cases import BENCHMARKS

    titles = [benchmark.title for benchmark in BENCHMARKS]
    own = findings.ceilings
    known = Ceilings(own["bytes"], own["operations"]).arguments if "bytes" in own else []
    position = findings.measured
    while position < len(titles) and deadline - perf_counter() > ENOUGH:
        left = deadline - perf_counter()
        worker, running, begun = (
            start("benchmarks", str(position), f"{left - ENOUGH / 2:.0f}", *known),
            position,
            perf_counter(),
        )
        why = ""
        try:
            while (record := worker.record(min(begun + BENCHMARK_LIMIT, deadline) - perf_counter())) is not None:
                if "start" in record:
                    running, begun = record["start"], perf_counter()
                    continue
                findings.take(record)
                if record["complete"] and position <= record["position"]:
                    position = findings.measured = record["position"] + 1
                    print(f"  {titles[record['position']]}: {record['ms']}", flush=True)
                save()
        except TimeoutError:
            why = "no answer in time"
        code, complaint = worker.end()
        if position <= running:
            if why:
                findings.broken.append(f"{titles[running]}: {why}")
            else:
                findings.lost.append(f"{titles[running]}: exit code {code}, {brief(complaint)}")
            position = findings.measured = running + 1
        if why or code:  # also after all was measured
            findings.complaints[titles[running]] = complaint
    findings.left += titles[position:]
