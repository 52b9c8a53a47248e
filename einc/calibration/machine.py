"""The processor of this computer, with measured rates."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from einc.calibration.fit import fit_rates, list_ratios, round_to_digits
from einc.calibration.models import list_probes
from einc.calibration.samples import Clock, Phase, SessionRunner, StartRunner, measure_probes
from einc.machines.detect import measure_memory
from einc.machines.gpu import SIZES
from einc.machines.load import count_host_cores, load_machine
from einc.machines.model import KernelRate, Machine, Site
from einc_runtime.kernels.processor import name_processor
from einc_runtime.plan.schema import HOST
from einc_runtime.text import format_count

SECONDS, QUICK_SECONDS = 60.0, 15.0
DTYPES = ("f32", "f64", "f16", "bf16")
SITES_PER_CORE = 4
"""Plans for several sites per core have smaller tasks, and more that move or combine."""
PRODUCT_KERNEL = "contract"
"""The kernel whose operations run at the peak of their dtype."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine with measured rates.

    `ratios` has, by kind of task, predicted over measured time of every task that was timed; `rounds` is how often
    whole plans were run. `left_out` of the `probes` models were not run, as the computer was too slow for them.
    """

    machine: Machine
    ratios: dict[str, list[float]]
    rounds: int
    probes: int = 0
    left_out: int = 0


def calibrate_host(
    sites: int | None = None,
    *,
    quick: bool = False,
    phase: Phase = lambda _: None,
    cores: int | None = None,
    start: StartRunner = lambda bundle: SessionRunner.start(bundle, "cpu"),
    clock: Clock = time.monotonic,
) -> Calibration:
    """Measures this computer's cores. `sites` is the number of sites of the machine; by default, one for each core.

    It takes about a minute, and a quarter of one with `quick`. `cores`, `start` and `clock` are for tests.
    """
    count = cores or count_host_cores()
    base = load_machine(HOST, sites or count)
    probed = [replace(load_machine(HOST, number), cores=count) for number in (count, SITES_PER_CORE * count)]
    seconds = QUICK_SECONDS if quick else SECONDS
    probes = list_probes(quick, ("f32",) if quick else DTYPES)
    measurements = measure_probes(probes, probed, start, seconds, phase, clock)
    rates = fit_rates(measurements.samples)
    ratios = list_ratios(measurements.samples, rates)
    begun = {
        name: replace(rate, us=round_to_digits(rate.us + measurements.start_ms * 1e3)) for name, rate in rates.items()
    }
    moving = begun.get("copy", KernelRate(0.0, gbs=base.sites[0].hbm_gbs))
    begun["transfer"] = moving
    machine = replace(
        base,
        sites=tuple(
            replace(
                site,
                hbm_gbs=min(moving.gbs, 1e6),
                flops=_list_peaks(begun),
                kernels=tuple(sorted(begun.items())),
                memory_bytes=measure_memory() // len(base.sites) or site.memory_bytes,
            )
            for site in base.sites
        ),
        resources=tuple(replace(resource, gbs=min(moving.gbs / 2, 1e6)) for resource in base.resources),
        transfer_latency_us=moving.us,
        kernel_latency_us=round_to_digits(measurements.start_ms * 1e3),
        cores=count,
        measured=f"{name_processor()}, {format_count(count, 'core')}",
    )
    return Calibration(machine, ratios, measurements.rounds, len(probes), measurements.left_out)


def _list_peaks(rates: dict[str, KernelRate]) -> tuple[tuple[str, float], ...]:
    """The rates of products by dtype, where they were measured."""
    peaks = {}
    for name, rate in rates.items():
        task, _, dtype = name.partition(".")
        if task == PRODUCT_KERNEL and rate.flops < 1e30:
            peaks[dtype or "f32"] = rate.flops
    return tuple(sorted(peaks.items()))


def list_measured_rates(site: Site) -> list[tuple[str, KernelRate]]:
    """What was measured at a site, by the names that the ratios have. Of forms, these are the launch and the rates that
    large kernels come near to."""
    forms = []
    for kind in SIZES if site.gpu is not None else ():
        for rates in getattr(site.gpu, kind):
            flops = 1e12 * getattr(rates, "tensor_tflops", math.inf)
            forms.append((f"{kind}.{rates.dtype}", KernelRate(rates.launch_us, flops, 1e3 * rates.memory_tbs)))
    return [*forms, *site.kernels]


def summarize_ratios(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The first quarter, the median and the third quarter of predicted over measured times."""
    import numpy as np

    low, middle, high = (float(value) for value in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return low, middle, high
