"""What touches the GPU: a process that prints one JSON record per line, so that a lost device costs one case.

python tests/gpu worker kernels SECONDS              compiles what the others need, into EINC_KERNEL_CACHE
python tests/gpu worker correctness FIRST [END]      all cases from this one on, or up to another
python tests/gpu worker ceilings                     what this GPU can do at most
python tests/gpu worker benchmarks FIRST SECONDS [BYTES OPERATIONS]
                                                     all benchmarks from this one on; the ceilings, if they are known

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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from einc_runtime.environment import KERNEL_CACHE
from einc_runtime.errors import KernelFault
from einc_runtime.kernels.triton.launches import KernelSource
from tests.gpu import ceilings
from tests.gpu.cases import BENCHMARKS, Benchmark, Case
from tests.gpu.correctness import Array, Result, arrays_of, check, compiled, reference
from tests.gpu.layouts import Layout, Run
from tests.gpu.needs import needed_by
from tests.gpu.places import Place, of
from tests.gpu.primitives import TOLD

LONGEST = 4000
"""Characters of a traceback."""

LOST = 3
"""The exit code of a worker whose device is of no more use."""

REHEARSED = 6
"""Kernels that a rehearsal compiles; the tests have them all."""

FOR_BLOCKS, FOR_OTHERS = 1.8, 1.3
"""Of an equal share of the time that is left: the first benchmarks are the most important, and blocks are also
tuned."""

Record = dict[str, Any]
Plan = tuple[Benchmark | Case, int, tuple[int, ...]]
"""What is compiled, for how many sites, and the device of every site."""


def kernels(place: Place, seconds: float) -> Iterator[Record]:
    """All kernels of all plans are compiled, on all processors at once, so that no case waits for a compiler."""
    from einc_runtime.execution.cuda import precompile

    begin = perf_counter()
    architecture = place.architecture
    plans: list[Plan] = [
        (benchmark, sites, (0,) * sites) for benchmark in BENCHMARKS for sites in ((1, 8) if benchmark.many else (1,))
    ]
    plans += dict.fromkeys((run.case, run.sites, _mapping(run, place)) for run in place.runs())
    needed: dict[str, precompile.Job] = {}
    for plan in plans:  # in this process: what CUDA has begun does not survive a fork
        for source in _sources(place, architecture, *plan):
            needed.setdefault(source.key, (source, architecture))
    jobs = sorted(needed.values(), key=lambda job: not job[0].name.startswith("attention"))  # the longest ones first
    jobs = jobs[-REHEARSED:] if place.rehearsal else jobs
    where = Path(os.environ[KERNEL_CACHE])
    failed: list[KernelFault] = []
    done = precompile.compile_all(jobs, where, seconds=seconds - (perf_counter() - begin), failed=failed)
    found = {"kernels": len(needed), "compiled": done, "architecture": architecture}
    problem = {"failed": len(failed), "first": failed[0].message[:300]} if failed else {}
    yield found | problem | {"seconds": round(perf_counter() - begin)}


def _mapping(run: Run, place: Place) -> tuple[int, ...]:
    """The device of every site."""
    if run.layout is Layout.ONE:
        return (0,) * run.sites
    return tuple(site % place.gpus if run.layout is Layout.SPREAD else site for site in range(run.sites))


def _sources(
    place: Place, architecture: str, what: Benchmark | Case, sites: int, devices: tuple[int, ...]
) -> tuple[KernelSource, ...]:
    """The kernels of a benchmark's plan, or of a case's."""
    from einc_runtime.execution.cuda import precompile
    from tests.gpu.benchmark import compiled as compiled_benchmark

    if isinstance(what, Case):
        bundle = compiled(what, sites, what.dtype)
    else:
        bundle = compiled_benchmark(what, place.definitions(what), sites)
    return precompile.list_sources(bundle, architecture, [devices])


def correctness(place: Place, first: int, end: int | None = None) -> Iterator[Record]:
    """A record for every case; one that needs what a probe found broken is not run, except for the first such case.

    If that one is right, the probe is not; a worker that follows one that was lost tries nothing.
    """
    expected: dict[int, dict[str, Array]] = {}
    broken, tried = place.broken, place.broken if first else frozenset()
    for position, run in list(enumerate(place.runs()))[first:end]:
        case, number, sites = run.case, run.number, run.sites
        yield {"start": position}
        lacking: frozenset[str] = frozenset()
        try:
            lacking = needed_by(compiled(case, sites, case.dtype), run.layout) & broken if broken else lacking
            told = ", ".join(TOLD[name] for name in sorted(lacking))
            if lacking and lacking <= tried:
                result = Result(case.title, sites, unchecked=f"needs what is broken: {told}")
                yield {"position": position, **result.record(), "layout": run.layout.value}
                continue
            tried |= lacking
            if number not in expected:
                expected = {number: reference(case, arrays_of(compiled(case, 1, case.dtype)))}
            make_session = partial(place.session, layout=run.layout)
            result = check(case, sites, make_session, expected[number], place.torch)
            if lacking and result.holds:
                broken -= lacking
                result = replace(result, notes=(*result.notes, f"{run.title} is right, though a probe failed: {told}"))
        except Exception as error:
            problem = error.render() if hasattr(error, "render") else f"{type(error).__name__}: {error}"
            result = Result(case.title, sites, problem=problem, traceback=traceback.format_exc()[-LONGEST:])
        yield {"position": position, **result.record(), "layout": run.layout.value}
        if result.problem and not place.works():
            sys.stdout.flush()
            raise SystemExit(LOST)


def benchmarks(place: Place, first: int, seconds: float, known: ceilings.Ceilings | None) -> Iterator[Record]:
    """Several records for each, every one with more in it than the one before; the time is shared out among them."""
    from tests.gpu.benchmark import run

    begin = perf_counter()
    for position, benchmark in enumerate(BENCHMARKS):
        if position < first:
            continue
        yield {"start": position}
        share = (seconds - (perf_counter() - begin)) / (len(BENCHMARKS) - position)
        more = FOR_BLOCKS if benchmark.model == "llama_block" else FOR_OTHERS
        for outcome in run(benchmark, place, more * share, known):
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
        records = correctness(place, *map(int, rest))
    elif what == "ceilings":
        records = ceilings.measure(place)
    else:
        known = ceilings.Ceilings(float(rest[2]), float(rest[3])) if len(rest) > 2 else None
        records = benchmarks(place, int(rest[0]), float(rest[1]), known)
    for record in records:
        print(json.dumps(record), flush=True)
