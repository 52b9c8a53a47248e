"""The stage of the probes: every primitive in a process of its own, within some seconds for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any

from tests.gpu import primitives
from tests.gpu.findings import Findings, Record
from tests.gpu.processes import Start, brief

AT_ONCE = 8
"""Processes beside each other, of probes that are not timed."""
FAILED, UNKNOWN = "failed", "unknown"


def probe_all(findings: Findings, save: Any, start: Start, seconds: float) -> None:
    """Runs all probes: those whose speed is told one by one, and before them all others, several at once."""
    deadline = perf_counter() + seconds
    others = [name for name in primitives.TOLD if name not in primitives.TIMED]
    count = min(AT_ONCE, os.cpu_count() or 1)
    waves = [others[first : first + count] for first in range(0, len(others), count)]
    found: list[dict[str, Any]] = []
    for wave in [*waves, *([name] for name in primitives.TIMED)]:
        found += _run(wave, deadline, start)
        findings.probes = sorted(found, key=lambda record: list(primitives.TOLD).index(record["probe"]))
        save()


def _run(names: Sequence[str], deadline: float, start: Start) -> list[dict[str, Any]]:
    if perf_counter() >= deadline:
        return [{"probe": name, "status": UNKNOWN, "detail": "there was no time for it"} for name in names]
    workers = [(name, start("probe", name)) for name in names]
    found = []
    for name, worker in workers:
        record = None
        try:
            record = worker.record(deadline - perf_counter())
            code, complaint = worker.end()
        except TimeoutError:
            _, complaint = worker.end(0.0)
            found.append({"probe": name, "status": UNKNOWN, "detail": f"no answer in time {brief(complaint)}".strip()})
            continue
        detail = f"exit code {code}, {brief(complaint)}"
        found.append(record or {"probe": name, "status": FAILED, "detail": detail})
    return found


def broken(probes: Iterable[Record]) -> dict[str, str]:
    """The primitives that failed, with the reason."""
    return {record["probe"]: record["detail"] for record in probes if record["status"] == FAILED}


def count_gpus(probes: Iterable[Record]) -> int:
    """As many as CUDA shows; 1 where that is not known."""
    return next((record["gpus"] for record in probes if "gpus" in record), 1)


def without_libraries(probes: Iterable[Record]) -> str:
    """Why no library is to compute attention; empty where some can."""
    known = {record["probe"]: record for record in probes}
    failed = broken(known.values())
    if primitives.POOLS in failed:
        return f"{primitives.TOLD[primitives.POOLS]}: {failed[primitives.POOLS]}"
    own = [known[name] for name in primitives.LIBRARIES if name in known]
    if any(one["status"] == FAILED for one in own) and not any(one["status"] in ("ok", UNKNOWN) for one in own):
        return "; ".join(f"{one['probe']}: {one['detail']}" for one in own if one["status"] == FAILED)
    return ""
