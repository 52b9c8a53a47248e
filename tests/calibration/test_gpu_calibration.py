"""Calibrating GPUs that are made up gives back the parameters of their forms and links; nothing here is timed."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from einc.calibration import gpus, shapes
from einc.calibration.gpus import KernelShapes, calibrate_gpus, list_peaks, name_kind
from einc.calibration.machine import list_measured_rates
from einc.calibration.samples import SessionRunner, compile_probe
from einc.calibration.shapes import (
    CHAINS,
    GROUPS,
    LEAST_SHAPES,
    TimedKernel,
    describe_attention,
    describe_experts,
    describe_product,
    list_shapes,
    measure_shapes,
    write_chain,
    write_probe,
)
from einc.machines.detect import Chip
from einc.machines.gpu import SIZES
from einc.machines.load import format_machine, load_gpu, load_machine, parse_machine
from einc.machines.model import KernelRate
from einc.predict.costs import TaskKind, compute_occupied_ms, compute_task_costs
from einc.predict.kernel_times import time_kernel_us
from einc_runtime.errors import MissingFault
from einc_runtime.execution.trace import TaskRun, Trace
from tests.support.cuda_plans import on_fake
from tests.support.ticking import ticking

CHIP = Chip("Made-up GPU", 108, 1.41, 2.0)  # a small cache: models have few copies of each kernel
GRAPH_MS, TINY_US = 0.011, 2.25
STREAM, LINK, ADDING = KernelRate(3, gbs=1500), KernelRate(7, gbs=40), KernelRate(6, gbs=900)
NOISE = 0.01


def make_up():
    """A GPU that takes what the forms of A100 say, in f16 and, at a sixteenth of the peak, in f32."""
    known = load_gpu("a100-sxm")
    kinds = {}
    for kind in SIZES:
        (rates,) = getattr(known, kind)
        half = msgspec.structs.replace(rates, dtype="f16", correction=None)
        fields = [name for name in ("tensor_tflops", "multiprocessor_tflops") if hasattr(half, name)]
        full = msgspec.structs.replace(half, dtype="f32", **{name: getattr(half, name) / 16 for name in fields})
        kinds[kind] = (half, full)
    return msgspec.structs.replace(known, **kinds)


TRUE = make_up()


def take_us(cost):
    if cost.work is not None:
        return time_kernel_us(TRUE, cost.work, cost.size, cost.precision, {"f16": 2.0, "f32": 4.0}[cost.precision], 1.0)
    return TINY_US if cost.size < 1e4 else STREAM.compute_ms(0, cost.size) * 1e3


class MadeUpGpu:
    """Runs plans without time passing: kernels take what the forms say, and a little more or less at random."""

    opened = 0

    def __init__(self, bundle):
        self.costs = compute_task_costs(bundle)
        self.random = random.Random(len(self.costs))
        MadeUpGpu.opened += 1

    def replay(self):
        kernels = [cost for cost in self.costs if cost.kind is TaskKind.KERNEL]
        noise = 1 + NOISE * self.random.uniform(-1, 1)
        return GRAPH_MS + sum(map(take_us, kernels)) * 1e-3 * noise

    def run(self):
        runs = []
        for position, cost in enumerate(self.costs):
            if cost.kind is not TaskKind.FENCE:
                rate = LINK if cost.kind is TaskKind.TRANSFER else ADDING
                runs.append(TaskRun(position, 0.0, rate.compute_ms(cost.flops, cost.size)))
        return Trace(tuple(runs), 1.0, "cuda")

    def close(self):
        MadeUpGpu.opened -= 1


@pytest.fixture(scope="module")
def calibrated():
    """From as few shapes as are measured of each type at least."""
    few = list_shapes()[: GROUPS * LEAST_SHAPES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "list_shapes", lambda: few)
        return calibrate_gpus(load_machine("dgx-a100", 4), CHIP, start=MadeUpGpu, clock=ticking(0.01))


def test_made_up_gpus_give_back_their_parameters(calibrated):
    site = calibrated.machine.sites[3]
    assert site.gpu_name == "Made-up GPU"
    for kind, names in (
        ("products", ("tensor_tflops", "launch_us", "memory_tbs", "load_gbs", "wave_rounding")),
        ("prefill", ("tensor_tflops", "launch_us", "memory_tbs", "softmax_gels")),
        ("decode", ("launch_us", "memory_tbs")),
        ("experts", ("tensor_tflops", "memory_tbs")),
    ):
        for fitted, true in zip(getattr(site.gpu, kind), getattr(TRUE, kind), strict=True):
            assert (fitted.dtype, fitted.multiprocessors) == (true.dtype, 108)
            assert fitted.error < 0.08, kind
            for name in names if fitted.dtype == "f16" else names[:1]:  # f32 multiplies longer than it loads
                assert getattr(fitted, name) == pytest.approx(getattr(true, name), rel=0.15), (kind, name)
    assert calibrated.machine.kernel_latency_us == pytest.approx(TINY_US, rel=0.1)
    assert site.find_rate("map", "f32").compute_ms(0, 1e8) == pytest.approx(STREAM.compute_ms(0, 1e8), rel=0.05)


OTHERS = (
    *(describe_product(*sizes) for sizes in ((700, 3000, 1200), (48, 6000, 2048), (2500, 2500, 2500), (5, 900, 8000))),
    *(describe_attention(*sizes, 16, 4, 128) for sizes in ((3, 700, 700), (1, 2048, 2048), (20, 1, 3000), (5, 1, 600))),
    describe_experts(300, 3000, 1500),
)
"""Shapes that are not measured."""


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_kernels_of_other_shapes_take_what_the_made_up_gpu_takes(calibrated, dtype):
    site = calibrated.machine.sites[0]
    for shape in OTHERS:
        cost = compute_task_costs(compile_on_one(write_probe(shape, dtype, 0)))[0]
        assert compute_occupied_ms(cost, site, 0.0) * 1e3 == pytest.approx(take_us(cost), rel=0.13), cost.work


def compile_on_one(probe):
    return compile_probe(probe, load_machine("dgx-a100", 1))


def test_links_have_the_rates_that_were_measured(calibrated):
    machine = calibrated.machine
    assert (machine.cores, len(machine.sites), machine.measured) == (None, 4, "4 sites of Made-up GPU")
    assert machine.transfer_latency_us == pytest.approx(7, rel=0.02)
    assert all(resource.gbs == pytest.approx(40, rel=0.02) for resource in machine.resources)
    assert machine.sites[0].find_rate("aggregate", "f32").gbs == pytest.approx(900, rel=0.05)
    assert machine.sites[0].memory_bytes == load_machine("dgx-a100").sites[0].memory_bytes


def test_a_calibrated_machine_is_a_machine_file(calibrated):
    text = format_machine(calibrated.machine)
    assert parse_machine(text) == calibrated.machine
    names = [name for name, _ in list_measured_rates(calibrated.machine.sites[0])]
    assert {"products.f16", "decode.f32", "map", "copy"} <= set(names)
    assert {"products.f16", "experts.f32", "softmax"} <= calibrated.ratios.keys()
    assert all(0.9 < ratio < 1.1 for ratio in calibrated.ratios["products.f16"])
    assert MadeUpGpu.opened == 0


@pytest.mark.slow
def test_the_same_measurements_give_the_same_bytes():
    results = [
        calibrate_gpus(load_machine("dgx-a100", 1), CHIP, quick=True, start=MadeUpGpu, clock=ticking()).machine
        for _ in range(2)
    ]
    assert format_machine(results[0]) == format_machine(results[1])
    assert [rates.dtype for rates in results[0].sites[0].gpu.products] == ["f16"]


def test_when_the_time_is_over_each_kind_has_some_shapes():
    machine = load_machine("dgx-a100", 1)
    shapes = measure_shapes(("f16",), machine, 1 << 20, MadeUpGpu, 1.0, clock=ticking(2))
    assert len(shapes.kernels) == GROUPS * LEAST_SHAPES
    assert shapes.left_out == len(list_shapes()) - len(shapes.kernels) > 0
    kinds = [name_kind(kernel.cost.work) for kernel in shapes.kernels]
    assert min(kinds.count(kind) for kind in (*SIZES, "")) >= 12
    assert shapes.start_us == pytest.approx(TINY_US, rel=0.1)


def test_operands_do_not_fit_into_the_cache():
    """Twice its size, of 2-byte elements: 3 * 512^2 * 2 are 1.5 MiB, and 8 MiB have to be passed."""
    bundle = compile_on_one(write_probe(describe_product(512, 512, 512), "f16", 4 << 20))
    kernels = [cost for cost in compute_task_costs(bundle) if cost.kind is TaskKind.KERNEL]
    assert len(kernels) == 6
    assert len({cost.work for cost in kernels}) == 1


def test_shapes_run_on_simulated_gpus():
    def start(bundle):
        return SessionRunner(on_fake(bundle)[0])

    probes = [write_probe(describe_product(6, 10, 4), "f32", 0), write_chain(CHAINS[0])]
    for probe in probes:
        runner = start(compile_on_one(probe))
        assert runner.replay() >= 0
        runner.close()


def test_peaks_that_are_known_are_kept():
    site = load_machine("dgx-a100").sites[0]
    assert dict(list_peaks(site, TRUE)) == dict(site.flops)
    bare = replace(site, flops=())
    assert dict(list_peaks(bare, TRUE)) == pytest.approx(
        {rates.dtype: rates.tensor_tflops * 1e12 for rates in TRUE.products}
        | {"bf16": TRUE.products[0].tensor_tflops * 1e12}, rel=1e-3,
    )  # fmt: skip


def test_shapes_are_chosen_by_masks_and_by_positions():
    bundle = compile_on_one(write_probe(describe_product(6, 10, 4), "f32", 0))
    cost = compute_task_costs(bundle)[0]
    shapes = KernelShapes("products", tuple(TimedKernel(cost, float(us)) for us in (1, 2, 3)))
    assert list(shapes.choose(np.array([True, False, True])).us) == [1, 3]
    assert list(shapes.choose(np.array([2, 0])).us) == [3, 1]
    assert {name: list(values) for name, values in shapes.sizes().items()} == {
        "rows": [6] * 3, "columns": [10] * 3, "inner": [4] * 3
    }  # fmt: skip


def test_without_scipy_the_hint_installs_it(monkeypatch):
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    with pytest.raises(MissingFault, match="scipy") as missing:
        calibrate_gpus(load_machine("dgx-a100", 1), CHIP, start=MadeUpGpu)
    assert "scipy>=1.12" in missing.value.hint
