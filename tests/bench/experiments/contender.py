"""One contender of the measured experiments, in a process of its own: two rounds to warm up and ten that are timed.

    python -m tests.bench.experiments.contender ENTRY RESULT

ENTRY is an `Entry` as JSON; RESULT is the file for what is found, as JSON. The time of a round is that on the wall,
from the call until the result is there. Inputs and weights lie where they are needed before.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.bench.experiments.configurations import CHAINS, MODELS, Configuration

WARM, TIMED = 2, 10
EINC, TORCH, JAX = "einc", "torch", "jax"
CPU, CUDA, REHEARSAL = "cpu", "cuda", "rehearsal"

Definitions = tuple[tuple[str, str], ...]
_LENGTHS = {
    CPU: {"b1x1k": [256], "b1x8k": [1024], "b1x128k": [4096], "b8x1k": [128] * 8, "b128x1k": [128] * 32},
    REHEARSAL: {"b1x1k": [16], "b1x8k": [32], "b1x128k": [64], "b8x1k": [16] * 8, "b128x1k": [16] * 8},
}
_BLOCK = {
    CPU: {"d_model": 1024, "heads_q": 16, "heads_kv": 4, "d_head": 64, "d_ff": 3584},
    REHEARSAL: {"d_model": 64, "heads_q": 8, "heads_kv": 8, "d_head": 8, "d_ff": 128},
}
_SCALE = {CPU: 8, REHEARSAL: 64}


@dataclass(frozen=True, slots=True)
class Entry:
    """A configuration that is measured, and by whom: einc, PyTorch cut in the way `how`, or JAX.

    `backend` is cuda; cpu, at sizes that it can do; or rehearsal, which takes the way of cuda with a fake driver, gloo
    and virtual devices, at sizes whose times mean nothing.
    """

    configuration: Configuration
    contender: str
    backend: str
    how: str = ""

    @property
    def title(self) -> str:
        words = f"{self.contender} {self.how}".strip()
        return self.configuration.title if self.contender == EINC else f"{self.configuration.workload}, {words}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of the timed rounds, or why there are none; what was predicted, and the cost, if it is a plan."""

    times: tuple[float, ...] = ()
    predicted_ms: float = 0.0
    cost: int = 0
    note: str = ""
    problem: str = ""


def read_entry(text: str) -> Entry:
    record = json.loads(text)
    return Entry(**record | {"configuration": Configuration(**record["configuration"])})


def definitions_of(workload: str, backend: str) -> Definitions:
    """What makes a workload small enough for the backend."""
    if backend == CUDA:
        return ()
    if workload in CHAINS:
        return (("scale", str(_SCALE[backend])),)
    sizes = {**_BLOCK[backend], "seq_lens": _LENGTHS[backend][workload]}
    return tuple((name, str(value)) for name, value in sizes.items())


def compiled(entry: Entry, sites: int) -> Any:
    """The plan on so many sites of the machine at hand."""
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    each, definitions = entry.configuration, definitions_of(entry.configuration.workload, entry.backend)
    options = CompileOptions(
        machine=each.machine or None,
        devices=sites,
        definitions=definitions,
        preset=each.preset if entry.backend == CUDA else None,
        dtype=None if entry.backend == CUDA else "f32",
        selector=each.selector,
        schedule=each.schedule,
        seed=each.seed,
        input_placement=each.placement,
    )
    return compile_model((MODELS / f"{each.model}.ein").read_text(encoding="utf-8"), f"{each.model}.ein", options)


def measure(entry: Entry) -> Measured:
    """Raises whatever goes wrong."""
    return {EINC: _measure_einc, TORCH: _measure_torch, JAX: _measure_jax}[entry.contender](entry)


def _measure_einc(entry: Entry) -> Measured:
    from tests.bench.inputs import drawn

    found = compiled(entry, entry.configuration.sites)
    with _session(found.bundle, entry.backend) as session:
        session.load_all(drawn(found.bundle))
        times = _timed(session.execute)
        return Measured(times, found.program.predicted_ms, found.plan.total_cost, "; ".join(session.notes))


def _session(bundle: Any, backend: str) -> Any:
    from einc_runtime.execution.session import Session

    if backend != REHEARSAL:
        return Session(bundle, backend)
    from einc_runtime.execution.cuda.executor import CudaExecutor
    from tests.support.cuda_fake import FakeDriver
    from tests.support.cuda_fake_kernels import NumpyKernels

    driver = FakeDriver(len(bundle.memory))
    executor = CudaExecutor(bundle, range(len(bundle.memory)), driver=driver, kernels=NumpyKernels(driver))
    return Session(bundle, executor=executor)


def _measure_torch(entry: Entry) -> Measured:
    import torch

    from tests.bench.inputs import drawn
    from tests.gpu.torch_ranks import run_alone, run_ranks

    bundle, device = compiled(entry, 1).bundle, "cuda" if entry.backend == CUDA else "cpu"
    if entry.how:
        times, _ = run_ranks(bundle, drawn, entry.how, entry.configuration.sites, device, (WARM, TIMED))
    else:
        times, _ = run_alone(bundle, drawn, device, (WARM, TIMED))
    return Measured(tuple(times), note=f"torch {torch.__version__}")


def _measure_jax(entry: Entry) -> Measured:
    sites = entry.configuration.sites
    if entry.backend != CUDA:
        os.environ |= {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={sites}",
            "JAX_PLATFORMS": "cpu",
        }
    from tests.bench.inputs import drawn
    from tests.gpu.jax_models import prepared

    bundle = compiled(entry, 1).bundle
    call, version = prepared(bundle, drawn(bundle), "gpu" if entry.backend == CUDA else "cpu", sites)
    return Measured(_timed(lambda: call().block_until_ready()), note=f"jax {version}")


def _timed(run: Callable[[], object]) -> tuple[float, ...]:
    times = []
    for _ in range(WARM + TIMED):
        begin = perf_counter()
        run()
        times.append((perf_counter() - begin) * 1e3)
    return tuple(times[WARM:])


def main(text: str, result: str) -> None:
    try:
        found = measure(read_entry(text))
    except ImportError as error:
        found = Measured(problem=f"not here: {error}")
    except Exception as error:  # of other people's libraries, too: the others are measured still
        found = Measured(problem=f"{type(error).__name__}: {error}"[:300])
    Path(result).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
