"""What touches the GPU: a process that prints one JSON record per line, so that a lost device costs one case.

python tests/gpu worker kernels SECONDS              compiles what the others need, into EINC_KERNEL_CACHE
python tests/gpu worker correctness FIRST            all cases from this one on
python tests/gpu worker benchmarks FIRST SECONDS     all benchmarks from this one on

With --rehearse on a machine without a GPU, as far as that goes (`places`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from einc_runtime.errors import KernelFault
from einc_runtime.kernels.cuda import kernel_cache
from einc_runtime.kernels.triton.launches import KernelSource
from tests.gpu.cases import BENCHMARKS, CASES
from tests.gpu.correctness import Array, Result, arrays_of, check, compiled, reference
from tests.gpu.places import Place, of

LONGEST = 4000
"""Characters of a traceback."""

LOST = 3
"""The exit code of a worker whose device is of no more use."""

REHEARSED = 6
"""Kernels that a rehearsal compiles; the tests have them all."""

Record = dict[str, Any]


def kernels(place: Place, seconds: float) -> Iterator[Record]:
    """All kernels of all plans are compiled, on all processors at once, so that no case waits for a compiler."""
    from einc_runtime.execution.cuda import precompile

    begin = perf_counter()
    architecture = place.architecture
    plans = [(place, architecture, True, number, sites) for number in range(len(BENCHMARKS)) for sites in (1, 8)]
    plans += [(place, architecture, False, number, sites) for number, sites in place.runs()]
    needed: dict[str, precompile.Job] = {}
    # Forked, since this process is not one of a module that others could import; they leave the GPU alone.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        for sources in pool.map(_sources, plans):
            needed |= {source.key: (source, architecture) for source in sources if source.key not in needed}
    jobs = sorted(needed.values(), key=lambda job: not job[0].name.startswith("attention"))  # the longest ones first
    jobs = jobs[-REHEARSED:] if place.rehearsal else jobs
    where = Path(os.environ[kernel_cache.ENVIRONMENT])
    failed: list[KernelFault] = []
    done = precompile.compile_all(jobs, where, seconds=seconds - (perf_counter() - begin), failed=failed)
    found = {"kernels": len(needed), "compiled": done, "architecture": architecture}
    problem = {"failed": len(failed), "first": failed[0].message[:300]} if failed else {}
    yield found | problem | {"seconds": round(perf_counter() - begin)}


def _sources(plan: tuple[Place, str, bool, int, int]) -> tuple[KernelSource, ...]:
    """The kernels of a benchmark's plan, or of a case's."""
    from einc_runtime.execution.cuda import precompile
    from tests.gpu.benchmark import compiled as compiled_benchmark

    place, architecture, benchmark, number, sites = plan
    if benchmark:
        bundle = compiled_benchmark(BENCHMARKS[number], place.definitions(BENCHMARKS[number]), sites)
    else:
        bundle = compiled(CASES[number], sites, CASES[number].dtype)
    return precompile.list_sources(bundle, architecture, [(0,) * sites])


def correctness(place: Place, first: int) -> Iterator[Record]:
    expected: dict[int, dict[str, Array]] = {}
    for position, (number, sites) in enumerate(place.runs()):
        if position < first:
            continue
        case = CASES[number]
        yield {"start": position}
        try:
            if number not in expected:
                expected = {number: reference(case, arrays_of(compiled(case, 1, case.dtype)))}
            result = check(case, sites, place.session, expected[number], place.torch)
        except Exception as error:
            problem = error.render() if hasattr(error, "render") else f"{type(error).__name__}: {error}"
            result = Result(case.title, sites, problem=problem, traceback=traceback.format_exc()[-LONGEST:])
        yield {"position": position, **result.record()}
        if result.problem and not place.works():
            sys.stdout.flush()
            raise SystemExit(LOST)


def benchmarks(place: Place, first: int, seconds: float) -> Iterator[Record]:
    """Several records for each, every one with more in it than the one before; the time is shared out among them."""
    from tests.gpu.benchmark import run

    begin = perf_counter()
    for position, benchmark in enumerate(BENCHMARKS):
        if position < first:
            continue
        yield {"start": position}
        share = (seconds - (perf_counter() - begin)) / (len(BENCHMARKS) - position)
        for outcome in run(benchmark, place, 1.3 * share):  # the first ones are the most important
            yield {"position": position, **asdict(outcome)}
        if not place.works():
            sys.stdout.flush()
            raise SystemExit(LOST)


def main(arguments: list[str]) -> None:
    faulthandler.enable()  # where it was when it dies
    faulthandler.register(signal.SIGUSR1)  # or when it is asked since it gives no answer
    place, (what, *rest) = of(arguments)
    if what == "kernels":
        records = kernels(place, float(rest[0]))
    elif what == "correctness":
        records = correctness(place, int(rest[0]))
    else:
        records = benchmarks(place, int(rest[0]), float(rest[1]))
    for record in records:
        print(json.dumps(record), flush=True)
