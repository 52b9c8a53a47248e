"""Compiles the kernels of a plan ahead of time and without a GPU, so that a server needs no compiler.

The plan's tasks are prepared as the CUDA executor prepares them, on memory that does not exist: once with every site on
a device of its own, and once with all sites on one device, where rewrites change what tasks read. Other mappings of
sites to devices share most of their kernels with these two; their other kernels are compiled when they run.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.devices import DeviceMemory
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.peer_flags import list_peer_sums
from einc_runtime.execution.cuda.preparation import list_joint_kernels, rewrite_for_devices
from einc_runtime.execution.cuda.step_kernels import StepKernels
from einc_runtime.execution.cuda.streams import StepKind, schedule_steps
from einc_runtime.installing import suggest_extra
from einc_runtime.kernels.cuda import kernel_cache, triton_compile
from einc_runtime.kernels.cuda.triton_compile import ARCHITECTURES, KernelBinary
from einc_runtime.kernels.gpu import Description, GpuKernel, GpuTarget, PeerFlags
from einc_runtime.kernels.triton.kernels import TritonKernels
from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource, LaunchSequence
from einc_runtime.plan.schema import Bundle

__all__ = ["ARCHITECTURES", "compile_all", "list_sources", "precompile", "require_compiler"]

Job = tuple[KernelSource, str]
"""A kernel and the architecture that it is compiled for."""

_ARENA_DISTANCE = 1 << 40  # bytes between the addresses of arenas; nothing is stored there
_MAX_SERIAL = 4  # up to this many kernels are compiled in this process


def require_compiler() -> str:
    """The compiler's name and version. Raises MissingFault where there is none."""
    compiler = triton_compile.version()
    if compiler is None:
        hint = suggest_extra("triton")
        raise MissingFault("kernels cannot be compiled ahead: Triton is not installed", hint=hint)
    return compiler


def precompile(bundle: Bundle, architectures: Sequence[str], folder: Path) -> int:
    """Writes all kernels of a plan for all architectures into a directory, and returns how many there are for each.

    Kernels that are there already are kept. Raises MissingFault, KernelFault, PlanFault and OSError.
    """
    require_compiler()
    jobs: list[Job] = []
    count = 0
    for architecture in architectures:
        needed = list_sources(bundle, architecture)
        count = max(count, len(needed))
        jobs += [(source, architecture) for source in needed]
    compile_all(jobs, folder)
    return count


def compile_all(
    jobs: Sequence[Job],
    folder: Path,
    seconds: float = math.inf,
    failed: list[KernelFault] | None = None,
) -> int:
    """Writes the kernels that are missing in a directory, until the time is up, and returns how many it has written.

    The faults of kernels that cannot be compiled are added to `failed`; without it, the first one is raised.
    """
    compiler, begin = require_compiler(), perf_counter()
    missing = [job for job in jobs if kernel_cache.find(*job, [folder], compiler) is None]
    done = 0
    with closing(_compile_jobs(missing)) as binaries:
        for (source, architecture), binary in zip(missing, binaries, strict=True):
            if isinstance(binary, KernelFault):
                if failed is None:
                    raise binary
                failed.append(binary)
                continue
            kernel_cache.store(source, architecture, binary, folder)
            done += 1
            if perf_counter() - begin > seconds:
                break
    return done


def list_sources(
    bundle: Bundle, architecture: str, mappings: Iterable[tuple[int, ...]] | None = None
) -> tuple[KernelSource, ...]:
    """All kernels of a plan that have to be compiled, in a fixed order; `mappings` give every site its device."""
    kernels = _Collector()
    sites = len(bundle.memory)
    for devices in mappings or dict.fromkeys((tuple(range(sites)), (0,) * sites)):
        _prepare(bundle, devices, kernels, architecture)
    return tuple(kernels.sources[key] for key in sorted(kernels.sources))


def _prepare(bundle: Bundle, devices: Sequence[int], kernels: _Collector, architecture: str) -> None:
    targets = {n: GpuTarget.of(architecture, n) for n in sorted(set(devices))}
    tasks = rewrite_for_devices(bundle, devices)
    schedule = schedule_steps(bundle, tasks, devices, frozenset())
    memory = DeviceMemory(bundle, devices, [(site + 1) * _ARENA_DISTANCE for site in range(len(devices))])
    staging = [(len(devices) + 1 + n) * _ARENA_DISTANCE for n in range(len(schedule.staging_bytes))]
    is_apart = len(targets) == len(devices)
    sums = list_peer_sums(bundle, tasks) if is_apart else ()
    flags = {
        number: PeerFlags(_ARENA_DISTANCE, (_ARENA_DISTANCE,) * (len(s.tasks) - 1), is_gathering=bool(s.gathers))
        for s in sums
        for number in s.tasks
    }
    step_kernels = StepKernels(
        bundle, tasks, memory,
        kernels=kernels, driver=_make_null_driver(), targets=targets, staging=staging, flags=flags,
        gathers=[gather for s in sums for gather in s.gathers],
    )  # fmt: skip
    for step in schedule.steps:
        if step.kind is StepKind.EARLY:
            step_kernels.prepare_early_read(step)
        elif step.stream is not None and step.kind is not StepKind.STATUS:
            step_kernels.prepare(step)
    for _, _, prepare in list_joint_kernels(step_kernels):
        prepare()


class _Collector(TritonKernels):
    """Collects the sources of kernels; nothing is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, KernelSource] = {}

    def prepare(self, sequence: LaunchSequence, target: GpuTarget) -> GpuKernel:
        for step in sequence.steps:
            if isinstance(step, KernelLaunch):
                self.sources.setdefault(step.source.key, step.source)
        return GpuKernel(_refuse_launch, Description("triton", "", ""), sequence.scratch, sequence.status_message)

    def versions(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.sources.clear()


def _refuse_launch(workspace: int, status: int) -> Any:
    raise AssertionError("nothing is launched ahead of time")


def _make_null_driver() -> Driver:
    class NoDriver:
        copy_async = staticmethod(_refuse_launch)

    driver: Any = NoDriver()
    return driver  # type: ignore[no-any-return]


def _compile_jobs(jobs: Sequence[Job]) -> Generator[KernelBinary | KernelFault]:
    workers = min(len(jobs), os.cpu_count() or 1, 16)
    if len(jobs) <= _MAX_SERIAL or workers < 2:
        yield from map(_compile, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_compile, jobs, chunksize=2)


def _compile(job: Job) -> KernelBinary | KernelFault:
    try:
        return triton_compile.compile_source(*job)
    except KernelFault as fault:
        return fault
