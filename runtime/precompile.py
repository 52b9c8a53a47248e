"""Compiles the kernels of a plan ahead of time, without a GPU, for servers that need no compiler then.

The plan's tasks are prepared as the CUDA executor prepares them, on memory that does not exist: once with every site on
a device of its own, and once with all sites on one device, where transfers that need no copy change what tasks read.
Other mappings share most of their kernels with these; what they lack is compiled when they run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from runtime.bundle import Bundle
from runtime.errors import MissingFault
from runtime.executors.cuda_driver import Driver
from runtime.executors.cuda_memory import DeviceMemory
from runtime.executors.cuda_steps import Part, lay_out
from runtime.executors.cuda_work import Workshop
from runtime.executors.forwarding import forward
from runtime.kernels import kernel_cache, triton_compile
from runtime.kernels.gpu_base import Description, GpuKernel, Target
from runtime.kernels.gpu_registry import PlannedKernels
from runtime.kernels.triton_compile import ARCHITECTURES, Binary
from runtime.kernels.triton_source import Call, Plan, Source

__all__ = ["ARCHITECTURES", "precompile", "require_compiler", "sources"]

_APART = 1 << 40  # bytes between the arenas of sites, which nobody reads
_FEW = 4  # kernels that are compiled in this process


def require_compiler() -> str:
    """The compiler's name and version. Raises MissingFault where there is none."""
    found = triton_compile.version()
    if found is None:
        raise MissingFault(
            "kernels cannot be compiled ahead: Triton is not installed", hint="pip install 'einc[triton]'"
        )
    return found


def precompile(
    bundle: Bundle,
    architectures: Sequence[str],
    place: Path,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes all kernels of a plan for all architectures into a directory, and returns how many there are for each.

    What is there already is kept. Raises MissingFault, KernelFault, PlanFault and OSError.
    """
    compiler = require_compiler()
    jobs: list[tuple[Source, str]] = []
    count = 0
    for architecture in architectures:
        needed = sources(bundle, architecture)
        count = max(count, len(needed))
        jobs += [
            (source, architecture)
            for source in needed
            if kernel_cache.find(source, architecture, [place], compiler) is None
        ]
    for done, (job, binary) in enumerate(zip(jobs, _compiled(jobs), strict=True), 1):
        kernel_cache.store(job[0], job[1], binary, place)
        if progress is not None:
            progress(done, len(jobs))
    return count


def sources(bundle: Bundle, architecture: str) -> tuple[Source, ...]:
    """All kernels of a plan that have to be compiled, in a fixed order."""
    kernels = _Collector()
    sites = len(bundle.memory)
    for devices in dict.fromkeys((tuple(range(sites)), (0,) * sites)):
        _prepare(bundle, devices, kernels, architecture)
    return tuple(kernels.found[key] for key in sorted(kernels.found))


def _prepare(bundle: Bundle, devices: Sequence[int], kernels: _Collector, architecture: str) -> None:
    number = int(architecture.removeprefix("sm_"))
    targets = {n: Target(n, architecture, divmod(number, 10), 0) for n in sorted(set(devices))}
    tasks = forward(bundle, devices=devices)
    steps = lay_out(bundle, tasks, devices, frozenset())
    memory = DeviceMemory(bundle, devices, [(site + 1) * _APART for site in range(len(devices))])
    slots = [(len(devices) + 1 + n) * _APART for n in range(len(steps.slots))]
    workshop = Workshop.of(bundle, tasks, memory, kernels, _no_driver(), targets, slots)
    for step, work in zip(steps.steps, steps.works, strict=True):
        if step.lane is not None and work.part is not Part.STATUS:
            workshop.prepared(work)


class _Collector(PlannedKernels):
    """Keeps the sources of plans; nothing is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Source] = {}

    def prepared(self, plan: Plan, target: Target) -> GpuKernel:
        for step in plan.steps:
            if isinstance(step, Call):
                self.found.setdefault(step.source.key, step.source)
        return GpuKernel(_never, Description("triton", "", ""), plan.scratch, plan.complaint)

    def versions(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.found.clear()


def _never(workspace: int, status: int) -> Any:
    raise AssertionError("nothing is launched ahead of time")


def _no_driver() -> Driver:
    class NoDriver:
        copy_async = staticmethod(_never)

    driver: Any = NoDriver()
    return driver  # type: ignore[no-any-return]


def _compiled(jobs: Sequence[tuple[Source, str]]) -> Iterable[Binary]:
    workers = min(len(jobs), os.cpu_count() or 1, 8)
    if len(jobs) <= _FEW or workers < 2:
        return map(_compile, jobs)
    return _in_processes(jobs, workers)


def _in_processes(jobs: Sequence[tuple[Source, str]], workers: int) -> Iterable[Binary]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_compile, jobs, chunksize=2)


def _compile(job: tuple[Source, str]) -> Binary:
    return triton_compile.compile_source(*job)
