"""Calibrating a machine that is made up gives back its constants; nothing here is timed."""

import functools
import math
import random
from dataclasses import replace

import pytest

from einc.calibration.fit import Sample, fit_rate, fit_rates
from einc.calibration.machine import calibrate_host
from einc.calibration.models import MORE, PRODUCTS, QUICK, Probe, list_probes
from einc.calibration.samples import SessionRunner, compile_probe, measure_probes
from einc.machines.load import format_machine, load_machine, parse_machine
from einc.machines.model import KernelRate
from einc.predict.cores import list_run_tasks
from einc.predict.timeline import predict
from einc_runtime.execution.cuda.preparation import rewrite_for_devices
from einc_runtime.execution.trace import TaskRun, Trace
from einc_runtime.plan.schema import TransferTask
from tests.support.cuda_plans import on_fake
from tests.support.ticking import ticking

CORES, START_MS = 2, 0.004
RATES = {
    "contract": KernelRate(20, 1e11, 15),
    "attention": KernelRate(30, 8e10, 8),
    "map": KernelRate(5, 2e10, 30),
    "copy": KernelRate(3, gbs=16),
    "aggregate": KernelRate(6, gbs=24),
}
OTHER = KernelRate(4, 1e10, 12)


class MadeUp:
    """Runs plans on a clock of its own: every task takes what the rates say, and a little more than that at random."""

    def __init__(self, bundle, seed=1, noise=0.02):
        self.noise, self.random, self.bundle = noise, random.Random(seed), bundle
        machine = parse_machine(bundle.machine_file, connected=False)
        self.tasks, self.closed = list_run_tasks(bundle, machine), False

    def run(self):
        lengths = []
        for cost in self.tasks.costs:
            rate = RATES.get(cost.task, OTHER)
            lengths.append(rate.compute_ms(cost.flops, cost.size) * (1 + self.noise * self.random.random()))
        ready = [0.0] * CORES
        runs = []
        for origin, length in zip(self.tasks.origins, lengths, strict=True):
            worker = ready.index(min(ready))
            runs.append(TaskRun(origin, ready[worker], ready[worker] + length, worker))
            ready[worker] += length + START_MS
        return Trace(tuple(runs), max(ready), "cpu")

    def close(self):
        self.closed = True


def test_a_made_up_host_gives_back_its_constants():
    calibrated = calibrate_host(4, quick=True, cores=CORES, start=MadeUp, clock=ticking(0.2))
    machine = calibrated.machine
    assert (machine.name, machine.cores, len(machine.sites)) == ("host", CORES, 4)
    assert machine.measured.endswith(", 2 cores")
    rates = dict(machine.sites[0].kernels)
    for name in ("contract", "attention", "copy", "aggregate"):
        for flops, size in ((1e6, 1e5), (1e8, 1e6), (1e9, 1e7)):
            flops = flops if RATES[name].flops < math.inf else 0
            expected = RATES[name].compute_ms(flops, size) + START_MS
            assert rates[name].compute_ms(flops, size) == pytest.approx(expected, rel=0.05), name
    assert dict(machine.sites[0].flops)["f32"] == pytest.approx(1e11, rel=0.05)
    assert rates["transfer"] == rates["copy"]
    text = format_machine(machine)
    assert parse_machine(text) == machine
    assert all(0.95 < ratio < 1.05 for ratio in calibrated.ratios["contract"])


@pytest.mark.slow
def test_the_same_measurements_give_the_same_bytes():
    results = [calibrate_host(quick=True, cores=CORES, start=MadeUp, clock=ticking(4)).machine for _ in range(2)]
    assert format_machine(results[0]) == format_machine(results[1])


def test_plans_of_probes_run_on_simulated_gpus_and_on_cores():
    small = Probe(PRODUCTS, (("rows", "6"), ("inner", "10"), ("columns", "4")))
    machine = load_machine("dgx-a100", 2)
    probes = measure_probes([small], [machine], lambda bundle: SessionRunner(on_fake(bundle)[0]), 2.0, clock=ticking())
    plan = compile_probe(small, machine)
    moved = sum(isinstance(task, TransferTask) for task in rewrite_for_devices(plan, (0, 1)))
    assert {"contract"} <= {sample.task for sample in probes.samples}
    assert sum(isinstance(task, TransferTask) for task in plan.tasks) > moved > 0  # a sum reads one copy itself
    assert len(probes.transfers) == moved
    assert all(sample.ms >= 0 for sample in probes.samples)
    shared = replace(load_machine("host", 2), cores=2)
    start = functools.partial(SessionRunner.start, backend="cpu")
    probes = measure_probes([small], [shared], start, 2.0, clock=ticking())
    assert not probes.transfers
    assert sum(sample.task == "contract" for sample in probes.samples) == 6
    assert all(sample.ms > 0 for sample in probes.samples)


def test_a_fit_has_nothing_below_zero_and_survives_outliers():
    draw = random.Random(3)
    truth = KernelRate(12, 5e10, 20)
    samples = []
    for _ in range(60):
        flops, size = 10 ** draw.uniform(5, 9), int(10 ** draw.uniform(3, 7))
        slow = 5 if draw.random() < 0.1 else 1
        samples.append(Sample("contract", "f32", flops, size, truth.compute_ms(flops, size) * slow))
    rate = fit_rate(samples)
    for flops, size in ((1e6, 1e4), (1e8, 1e6), (1e9, 1e4)):
        assert rate.compute_ms(flops, size) == pytest.approx(truth.compute_ms(flops, size), rel=0.1)
    falling = [Sample("map", "f32", 0, size, 1 / size) for size in (1, 10, 100)]
    assert fit_rate(falling).us >= 0
    assert fit_rate(falling).gbs == math.inf
    assert fit_rate(samples[:1]).compute_ms(0, samples[0].size) == pytest.approx(samples[0].ms, rel=0.01)


def test_precisions_have_rates_of_their_own_where_there_are_several():
    samples = [Sample("contract", dtype, 1e9, 1, 10.0 if dtype == "f32" else 20.0) for dtype in ("f32", "f64")] * 3
    assert list(fit_rates(samples)) == ["contract.f32", "contract.f64"]
    assert list(fit_rates(samples[:1] * 3)) == ["contract"]


def test_time_is_bounded_and_all_runners_are_closed():
    machine = load_machine("host", 2)
    runners = []

    def start(bundle):
        runners.append(MadeUp(bundle))
        return runners[-1]

    probes = measure_probes(QUICK, [machine], start, 3.0, clock=ticking())
    assert (probes.rounds, probes.left_out) == (1, len(QUICK) - len(runners))
    assert len(runners) == 2  # half of the time is over
    assert all(runner.closed for runner in runners)


def test_probes_are_models_of_every_dtype():
    probes = list_probes(False, ("f32", "f16"))
    assert set(QUICK) | set(MORE) <= set(probes)
    machine = load_machine("host", 2)
    kernels = {
        operation.kernel
        for probe in (QUICK[0], QUICK[1], QUICK[2])
        for operation in compile_probe(probe, machine).operations
    }
    assert {"contract", "attention", "map", "rmsnorm", "rope", "layernorm", "softmax", "reduce"} <= kernels


def test_a_calibrated_machine_predicts_what_the_made_up_one_takes():
    machine = calibrate_host(8, quick=True, cores=CORES, start=MadeUp, clock=ticking(0.2)).machine
    true = {name: RATES.get(name.partition(".")[0], OTHER) for name, _ in machine.sites[0].kernels}
    kernels = tuple((name, replace(rate, us=rate.us + START_MS * 1e3)) for name, rate in true.items())
    made_up = replace(machine, sites=tuple(replace(site, kernels=kernels) for site in machine.sites))
    plan = compile_probe(replace(QUICK[4], seed=7), machine)
    assert predict(plan, machine).timeline.predicted_ms == pytest.approx(
        predict(plan, made_up).timeline.predicted_ms, rel=0.05
    )
