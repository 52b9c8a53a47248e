"""The command `tune`: measure on these GPUs which algorithms multiply fastest, and keep that beside the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from einc_runtime.cli import files, output
from einc_runtime.cli.base import DEVICE_NUMBERS, command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc_runtime.execution.cuda.tuning import TimedProduct
    from einc_runtime.execution.session import Session

PROPOSALS, SECONDS = 16, 60.0


@command(
    "tune",
    "PROGRAM tune llama.bin",
    "PROGRAM tune llama.bin --devices 0,0,0,0 --seconds 120",
    short_help="Measure which algorithms multiply fastest on these GPUs.",
)
@click.argument("plan", metavar="PLAN")
@click.option("--devices", type=DEVICE_NUMBERS, help="The GPU of every site, such as 0,0,1,1.")
@click.option(
    "--proposals",
    type=click.IntRange(1, 64),
    default=PROPOSALS,
    show_default=True,
    help="How many algorithms of cuBLASLt to try for each product.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    help="After this time, no other product is begun.",
)
@json_option
def tune_command(
    plan: str, devices: int | tuple[int, ...] | None, proposals: int, seconds: float, as_json: bool
) -> None:
    """Measure which algorithms multiply fastest on these GPUs.

    For each product of matrices of a plan, cuBLASLt proposes algorithms, and there are kernels of our own. They are
    timed on the GPUs of the plan, with random data, and the fastest ones are written to PLAN.tuning.json. `run` uses
    that file from then on, on this kind of GPU and with this version of cuBLASLt.
    """
    with show_phases() as phase:
        phase("tuning the plan")
        timed = tune_plan(plan, devices, proposals, seconds)
    products = [_make_record(timing) for timing in timed]
    path = str(tuning_file(plan))
    if as_json:
        output.say_json({"file": path, "products": products})
        return
    for record in products:
        gain = f" -> {record['ms']:.4f} ms{_name_kernel(record)}" if record["tuned"] else ", as it was"
        output.say(
            f"{record['product']}: {record['usual_ms']:.4f} ms{gain} ({format_count(record['tried'], 'way')} tried)"
        )
    output.say(f"{path}: {format_count(len(products), 'product')}")


def tuning_file(plan: str) -> Path:
    from einc_runtime.kernels.cuda.tuning import TUNING_SUFFIX

    return Path(plan + TUNING_SUFFIX)


def tune_plan(
    plan: str, devices: int | tuple[int, ...] | None, proposals: int = PROPOSALS, seconds: float = SECONDS
) -> Sequence[TimedProduct]:
    """Tunes a plan and writes its file; choices for other GPUs stay in it.

    Raises MissingFault where GPUs are missing, and ReadFault for a file that is no tuning.
    """
    from einc_runtime.execution.backends import make_executor
    from einc_runtime.execution.cuda.executor import CudaExecutor
    from einc_runtime.execution.cuda.tuning import collect_choices
    from einc_runtime.execution.session import Session
    from einc_runtime.kernels.cuda.tuning import encode_tunings, merge_tunings, read_tunings

    bundle = files.read_plan(plan)
    known = read_tunings(tuning_file(plan))
    executor = make_executor(bundle, "cuda", (devices,) if isinstance(devices, int) else devices, "stage")
    assert isinstance(executor, CudaExecutor)
    with Session(bundle, executor=executor) as session:
        _load_random(session)
        session.execute()
        timed = executor.tune(proposals, seconds)
    output.write_text(str(tuning_file(plan)), encode_tunings(merge_tunings(known, collect_choices(timed))))
    return timed


def _load_random(session: Session) -> None:
    from einc_runtime.cli.arrays import read_inputs
    from einc_runtime.execution.data.weights import list_weights

    session.load_all(read_inputs(session.bundle, ("rand:0",)))
    if list_weights(session.bundle):
        session.load_weights("rand:1")


def _make_record(timed: TimedProduct) -> dict[str, Any]:
    record = timed.alternatives.records[timed.chosen]
    return {
        "product": timed.alternatives.name,
        "gpu": timed.alternatives.gpu,
        "tried": len(timed.ms),
        "usual_ms": timed.ms[0],
        "ms": timed.ms[timed.chosen],
        "tuned": timed.chosen > 0,
        "refused": sum(math.isinf(ms) for ms in timed.ms),
        "kernel": record if isinstance(record, str) else "",
    }


def _name_kernel(record: dict[str, Any]) -> str:
    return f" by our own kernel {record['kernel']}" if record["kernel"] else ""
