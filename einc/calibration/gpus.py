"""Machines of GPUs with what was measured of them: the forms of kernels' times, fitted, and the rates of links."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from einc.calibration.fit import Sample, fit_rate, fit_rates, list_ratios, round_to_digits
from einc.calibration.form_fit import Array, predict_us
from einc.calibration.form_fit import fit_rates as fit_form_rates
from einc.calibration.forms import FORMS
from einc.calibration.machine import QUICK_SECONDS, SECONDS, Calibration
from einc.calibration.models import list_probes
from einc.calibration.samples import Clock, Measurements, Phase, SessionRunner, StartRunner, measure_probes
from einc.calibration.shapes import TimedKernel, measure_shapes
from einc.errors import MachineError
from einc.machines.catalogue import DataSheet
from einc.machines.detect import Chip
from einc.machines.gpu import GpuRates, MeasuredRates
from einc.machines.model import Machine, Resource, Site
from einc.predict.costs import TaskCost
from einc.predict.kernel_times import (
    Sizes,
    size_decode,
    size_experts,
    size_prefill,
    size_product,
    time_decode_us,
    time_experts_us,
    time_prefill_us,
    time_product_us,
)
from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_extra
from einc_runtime.plan.element_types import DTypeName
from einc_runtime.plan.schema import ITEMSIZE
from einc_runtime.plan.work import AttentionWork, ExpertsWork, ProductWork, Work
from einc_runtime.text import format_count

GPU_DTYPES: tuple[DTypeName, ...] = ("f16", "f32")
"""What is measured, the first one with `quick`. bf16 has the rates of f16."""

MIN_SHAPES = 8
"""Of a kind of kernels, to which its form is fitted."""

HELD_OUT = 0.2
"""The part of the shapes that tells the error of what is fitted to the others."""

REACHED_PEAK = 0.85
"""The part of the peaks that the fastest kernels are taken to reach, as those of other GPUs do. Fits look around it."""

TIMES_OF_WORK: Mapping[str, Callable[[Any, Any, int, float], float]] = {
    "products": time_product_us,
    "prefill": lambda rates, work, size, itemsize: time_prefill_us(rates, work, size),
    "decode": time_decode_us,
    "experts": time_experts_us,
}
SIZES_OF_WORK: Mapping[str, Callable[[Any], Sizes]] = {
    "products": size_product, "prefill": size_prefill, "decode": size_decode, "experts": size_experts
}  # fmt: skip


@dataclass(frozen=True)
class KernelShapes:
    """Kernels of one kind and type, as `form_fit` takes them."""

    kind: str
    kernels: tuple[TimedKernel, ...]

    @property
    def us(self) -> Array:
        return np.array([kernel.us for kernel in self.kernels])

    def time(self, rates: MeasuredRates) -> Array:
        costs = [kernel.cost for kernel in self.kernels]
        times = TIMES_OF_WORK[self.kind]
        return np.array([times(rates, cost.work, cost.size, _find_itemsize(cost)) for cost in costs])

    def sizes(self) -> dict[str, Array]:
        listed = [SIZES_OF_WORK[self.kind](kernel.cost.work) for kernel in self.kernels]
        return {name: np.array([float(sizes[name]) for sizes in listed]) for name in listed[0]}

    def choose(self, selection: NDArray[np.generic]) -> KernelShapes:
        return KernelShapes(self.kind, tuple(self.kernels[k] for k in np.arange(len(self.kernels))[selection]))


def calibrate_gpus(
    machine: Machine,
    chip: Chip,
    *,
    quick: bool = False,
    phase: Phase = lambda _: None,
    start: StartRunner = lambda bundle: SessionRunner.start(bundle, "cuda"),
    clock: Clock = time.monotonic,
) -> Calibration:
    """Measures the GPUs of a detected machine: kernels on the first of them, which stands for all, and the paths
    between them.

    `chip` describes the first GPU. The capacities of the machine's resources are set so that the pairs that cross them
    reach what was measured.
    """
    require_scipy()
    seconds = QUICK_SECONDS if quick else SECONDS
    dtypes = GPU_DTYPES[:1] if quick else GPU_DTYPES
    shapes = measure_shapes(dtypes, machine, round(chip.cache_mb * 1e6), start, seconds, phase, clock)
    phase("fitting the times of kernels")
    gpu, ratios = fit_gpu(shapes.kernels, chip, dtypes)
    streams = [_sample(kernel) for kernel in shapes.kernels if kernel.cost.work is None]
    rounds = 0
    if len(machine.sites) > 1:
        measurements = measure_probes(list_probes(True, ("f32",)), [machine], start, seconds / 2, phase, clock)
        latency, resources = fit_links(measurements, machine)
        machine = replace(machine, resources=resources, transfer_latency_us=latency)
        streams += [
            sample for sample in measurements.samples if sample.task == "copy" or sample.task.startswith("aggregate")
        ]
        rounds = measurements.rounds
    rates = fit_rates(streams)
    sites = tuple(
        replace(site, gpu_name=chip.name, gpu=gpu, kernels=tuple(sorted(rates.items())), flops=list_peaks(site, gpu))
        for site in machine.sites
    )
    measured = replace(
        machine,
        sites=sites,
        kernel_latency_us=shapes.start_us,
        measured=f"{format_count(len(sites), 'site')} of {chip.name}"[:100],
    )
    ratios |= list_ratios(streams, rates)
    return Calibration(measured, ratios, rounds, len(shapes.kernels) + shapes.left_out, shapes.left_out)


def require_scipy() -> None:
    """Raises MissingFault where the package that fits the forms is missing."""
    if find_spec("scipy") is None:
        raise MissingFault("measuring a GPU needs the package scipy", hint=suggest_extra("calibrate"))


def fit_gpu(
    kernels: Sequence[TimedKernel], chip: Chip, dtypes: Sequence[DTypeName]
) -> tuple[GpuRates, dict[str, list[float]]]:
    """The forms that are fitted to kernels, and predicted over measured time of each, by kind and type.

    A kind with too few shapes has no form; such kernels are then timed by their bytes.
    """
    rates: dict[str, list[MeasuredRates]] = {kind: [] for kind in FORMS}
    ratios: dict[str, list[float]] = {}
    for dtype in dtypes:
        reached = describe_reached(kernels, chip, dtype)
        timed = [kernel for kernel in kernels if kernel.cost.work is not None and kernel.cost.precision == dtype]
        for kind in FORMS:
            shapes = KernelShapes(kind, tuple(kernel for kernel in timed if name_kind(kernel.cost.work) == kind))
            if len(shapes.kernels) < MIN_SHAPES:
                continue
            drawn = np.random.default_rng(0).permutation(len(shapes.kernels))
            fitted = fit_form_rates(FORMS[kind], reached, shapes, drawn < HELD_OUT * len(drawn))
            rates[kind].append(fitted)
            ratios[f"{kind}.{dtype}"] = [float(ratio) for ratio in predict_us(fitted, shapes) / shapes.us]
    if not rates["products"]:
        raise MachineError("too few products were measured", hint="measure again while nothing else runs")
    parts: dict[str, Any] = {kind: tuple(fitted) for kind, fitted in rates.items()}
    return GpuRates(source=f"measured by einc machine calibrate on {chip.name}", **parts), ratios


def name_kind(work: Work | None) -> str:
    """The kind of rates that time it."""
    if isinstance(work, AttentionWork):
        return "decode" if work.queries <= work.sequences else "prefill"
    if isinstance(work, ProductWork):
        return "products"
    return "experts" if isinstance(work, ExpertsWork) else ""


def describe_reached(kernels: Sequence[TimedKernel], chip: Chip, dtype: DTypeName) -> DataSheet:
    """What stands for a data sheet: the peaks, of which the fastest kernels reach a usual part."""
    flops = [kernel.cost.flops / kernel.us for kernel in kernels if kernel.cost.precision == dtype]
    return DataSheet(
        name=chip.name,
        multiprocessors=chip.multiprocessors,
        clock_ghz=chip.clock_ghz,
        dtype=dtype,
        tensor_tflops=max(flops) * 1e-6 / REACHED_PEAK,
        memory_gbs=max(kernel.cost.size / kernel.us for kernel in kernels) * 1e-3 / REACHED_PEAK,
        memory_gb=1.0,
        cache_mb=chip.cache_mb,
        source="measured",
    )


def list_peaks(site: Site, gpu: GpuRates) -> tuple[tuple[str, float], ...]:
    """The peaks of a site by dtype: those that are known, and else those of its products."""
    fitted = {rates.dtype: float(f"{rates.tensor_tflops * 1e12:.4g}") for rates in gpu.products}
    if "f16" in fitted:
        fitted["bf16"] = fitted["f16"]
    return tuple(sorted((fitted | dict(site.flops)).items()))


def _find_itemsize(cost: TaskCost) -> float:
    return float(ITEMSIZE[cost.precision])  # type: ignore[index]


def _sample(kernel: TimedKernel) -> Sample:
    cost = kernel.cost
    return Sample(cost.task, cost.precision, cost.flops, cost.size, kernel.us * 1e-3)


def fit_links(measurements: Measurements, machine: Machine) -> tuple[float, tuple[Resource, ...]]:
    """The latency of transfers in microseconds, and the resources with the greatest rate that a pair reached over each.

    Transfers that share a resource at the same time are slower than alone, so only the fastest pair says what a
    resource has. A resource that nothing crossed keeps its rate.
    """
    if not measurements.transfers:
        return machine.transfer_latency_us, machine.resources
    common = fit_rate([Sample("transfer", "", 0.0, size, ms) for _, _, size, ms in measurements.transfers])
    reached: dict[int, float] = {}
    for source, target, size, ms in measurements.transfers:
        flowing = max(ms - common.us * 1e-3, ms * 0.1)
        for resource in machine.routes[source, target]:
            reached[resource] = max(reached.get(resource, 0.0), size / flowing / 1e6)
    resources = tuple(
        replace(resource, gbs=round_to_digits(reached[number])) if reached.get(number) else resource
        for number, resource in enumerate(machine.resources)
    )
    return common.us, resources
