"""Plans whose times are held against measured ones: what einc predicts of them, and what the time is made of."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from einc.compiler import Compiled, compile_model
from einc.errors import CapacityError, MachineError
from einc.generation.decoder_plans import TOKEN_DIMENSION
from einc.graph.decode_step import StepRequest
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.plan_reading.timing import time_plan
from einc.plan_report import read_report
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.kernel_times import KernelKind, classify
from tests.bench.experiments.runner import digest_sources
from tests.truth.cases import DECODE, Step
from tests.truth.models import write_config

CACHE = Path(__file__).resolve().parents[2] / "build" / "truth"
MACHINES = Path(__file__).with_name("machines")
MACHINE_OF = {
    "a100_40gb": "dgx-a100",
    "a100_sxm": str(MACHINES / "a100-80gb.json"),
    "h100_sxm": "dgx-h100",
    "h200_sxm": str(MACHINES / "h200.json"),
    "b200_sxm": str(MACHINES / "b200.json"),
    "l40s": str(MACHINES / "l40s.json"),
}
"""By the names that aiconfigurator gives to systems."""

KINDS = ("products", "attention", "experts", "other kernels", "combining", "moving")
_KIND_OF = {
    KernelKind.PRODUCT: "products",
    KernelKind.PREFILL: "attention",
    KernelKind.DECODE: "attention",
    KernelKind.EXPERTS: "experts",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """Milliseconds: the chosen plan with the range of its time, and the faster `megatron` plan, where there is one.

    `kinds` splits the tasks that decide the end of the chosen plan by what they do. `problem` says why there is no
    plan; all else is empty then.
    """

    ms: float = 0.0
    low_ms: float = 0.0
    high_ms: float = 0.0
    megatron_ms: float | None = None
    kinds: dict[str, float] | None = None
    problem: str = ""

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, 0.0, "")}


def plan_step(step: Step) -> Planned:
    """The fastest plan that einc finds for a step of a model, and the one with the cuts of Megatron."""
    text = import_model(step)
    options = CompileOptions(
        machine=MACHINE_OF[step.system],
        devices=step.gpus,
        baselines=("megatron",) if step.gpus > 1 else (),
        step=StepRequest(TOKEN_DIMENSION, 1) if step.kind == DECODE else None,
    )
    return measure_plan(compile_model(text, f"{step.model}.ein", options))


def import_model(step: Step) -> str:
    """The text of the model, as `einc import hf` writes it; a decode step is derived from it."""
    from einc.importers.common import ImportRequest
    from einc.importers.hf import import_hf

    request = ImportRequest(batch=step.batch, tokens=step.length, logits="all" if step.kind == DECODE else None)
    with tempfile.TemporaryDirectory() as folder:
        config = (write_config(step.model, Path(folder)) / "config.json").read_bytes()
    return import_hf(config, step.model, step.model, request, None).text


def remember(step: Step) -> Planned:
    """`plan_step`, or what it gave when the sources were the same."""
    path = CACHE / digest_sources() / f"{step.key.replace(' ', '-')}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(plan_step(step).record()), encoding="utf-8")
        draft.replace(path)
    return Planned(**json.loads(path.read_text(encoding="utf-8")))


def plan_all(steps: Sequence[Step], processes: int) -> dict[Step, Planned]:
    """The plans of all steps; an interrupted run goes on where it was."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return dict(zip(steps, pool.map(remember, steps), strict=True))


def measure_plan(compiled: Compiled) -> Planned:
    """The figures of a plan; those of a model that does not fit are the reason."""
    try:
        bundle, machine = compiled.bundle, compiled.target.machine
        baselines = [row.predicted_ms for row in read_report(bundle).baselines if row.predicted_ms is not None]
    except (CapacityError, MachineError) as error:
        return Planned(problem=error.message.splitlines()[0])
    timing = time_plan(bundle, machine)
    assert timing.times is not None, "plans of this folder are small enough"
    assert timing.predicted_ms is not None
    low, high = timing.range_ms or (timing.predicted_ms, timing.predicted_ms)
    kinds: defaultdict[str, float] = defaultdict(float)
    for position in timing.critical:
        kinds[name_kind(timing.run.costs[position], machine)] += (
            timing.times.ends[position] - timing.times.starts[position]
        )
    return Planned(
        ms=timing.predicted_ms,
        low_ms=low,
        high_ms=high,
        megatron_ms=min(baselines, default=None),
        kinds={kind: kinds[kind] for kind in KINDS if kinds[kind]},
    )


def name_kind(cost: TaskCost, machine: Machine) -> str:
    """Which of `KINDS` a task is."""
    if cost.kind is TaskKind.TRANSFER:
        return "moving"
    if cost.kind is not TaskKind.KERNEL:
        return "combining"
    gpu = machine.sites[cost.site].gpu
    return _KIND_OF.get(classify(cost.work, gpu) if gpu else "", "other kernels")
