"""Which law says best what kernels take on a core of this computer: lines, or the forms of GPUs?

    python -m tests.bench.laws [--seconds 200]

Runs the plans of `einc machine calibrate`, in f32, and takes the least time of every task, as other programs only make
it longer. Tasks of 2.5 ms and more are left out: they are interrupted in every round. A line has three parameters (a
start, operations, bytes), a form those of `einc/machines/gpu.py`, of one multiprocessor, with its tables. Both are
fitted to four fifths of the tasks by the code of calibration, and predict the last fifth, five times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from einc.calibration.fit import Sample, fit_rate
from einc.calibration.form_fit import fit_rates, predict_us
from einc.calibration.forms import FORMS
from einc.calibration.gpus import KernelShapes, describe_reached, name_kind
from einc.calibration.machine import SITES_PER_CORE
from einc.calibration.models import list_probes
from einc.calibration.samples import SessionRunner, measure_probes
from einc.calibration.shapes import TimedKernel
from einc.machines.detect import Chip
from einc.machines.load import count_host_cores, load_machine
from einc.machines.model import Machine

FOLDS = 5
LONGEST_US = 2500.0
CORE = Chip("a core", 1, 1.0, 4.0)

Predict = Callable[[Sequence[TimedKernel]], np.ndarray]


def fit_line(kernels: Sequence[TimedKernel]) -> Predict:
    costs = [(kernel.cost, kernel.us * 1e-3) for kernel in kernels]
    rate = fit_rate([Sample(cost.task, cost.precision, cost.flops, cost.size, ms) for cost, ms in costs])
    return lambda others: np.array([1e3 * rate.compute_ms(k.cost.flops, k.cost.size) for k in others])


def fit_form(kernels: Sequence[TimedKernel]) -> Predict:
    kind = name_kind(kernels[0].cost.work)
    shapes = KernelShapes(kind, tuple(kernels))
    some = np.arange(len(kernels)) % FOLDS == 0  # that tell an error, which is of no use here
    rates = fit_rates(FORMS[kind], describe_reached(kernels, CORE, "f32"), shapes, some)
    return lambda others: predict_us(rates, KernelShapes(kind, tuple(others)))


def cross_validate(kernels: Sequence[TimedKernel], fit: Callable[[Sequence[TimedKernel]], Predict]) -> np.ndarray:
    """What is predicted of each kernel by what was fitted to others."""
    found, fold = np.zeros(len(kernels)), np.random.default_rng(0).permutation(len(kernels)) % FOLDS
    for number in range(FOLDS):
        test = np.flatnonzero(fold == number)
        predict = fit([kernels[k] for k in np.flatnonzero(fold != number)])
        found[test] = predict([kernels[k] for k in test])
    return found


def describe(predicted: np.ndarray, measured: np.ndarray) -> str:
    off = np.abs(measured / predicted - 1)
    most, nearly_all = np.quantile(off, [0.8, 0.95])
    return (
        f"median {np.median(measured / predicted):.3f}, 80% within {most:.1%}, 95% within {nearly_all:.1%}, "
        f"errors are {np.abs(measured - predicted).sum() / measured.sum():.1%} of the time"
    )


def list_machines(cores: int) -> list[Machine]:
    """The processor as calibration measures it."""
    return [replace(load_machine("host", sites), cores=cores) for sites in (cores, SITES_PER_CORE * cores)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.laws", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=200.0)
    seconds = parser.parse_args().seconds
    machines = list_machines(count_host_cores())
    found = measure_probes(
        list_probes(False, ("f32",)), machines, lambda bundle: SessionRunner.start(bundle, "cpu"), seconds
    )
    timed = [TimedKernel(task.cost, 1e3 * min(task.times)) for task in found.tasks if task.cost.work is not None]
    kernels = [kernel for kernel in timed if kernel.us < LONGEST_US]
    for kind in FORMS:
        own = [kernel for kernel in kernels if name_kind(kernel.cost.work) == kind]
        if len(own) < 4 * FOLDS:
            continue
        measured = np.array([kernel.us for kernel in own])
        for name, fit in (("line", fit_line), ("form", fit_form)):
            print(f"{kind}, {len(own)} tasks, {name}: {describe(cross_validate(own, fit), measured)}", flush=True)


if __name__ == "__main__":
    main()
