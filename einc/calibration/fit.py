"""Rates from measured times: t = us + operations / flops + bytes / gbs, by least squares, with nothing below zero."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from einc.machines.model import KernelRate

FIT_ROUNDS = 12
"""Of re-weighting, which lets outliers count little."""
USUAL_DEVIATION = 0.25
"""Relative deviations up to this count by their squares, and larger ones by themselves."""
DIGITS = 3
"""Significant digits of what a machine file says: fits are no more exact than a part in a thousand."""
MIN_SAMPLES = 3
"""With fewer samples than parameters, a fit explains anything: two of its three rates are left out."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One task: what a machine file calls its kind, the precision, its operations and bytes, and milliseconds."""

    task: str
    precision: str
    flops: float
    size: float
    ms: float


def fit_rates(samples: Iterable[Sample]) -> dict[str, KernelRate]:
    """A rate for every kind of task, by the names of a machine file.

    A kind that was measured in several precisions has an entry for each; other kinds have one without a precision.
    """
    kinds: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        kinds.setdefault(sample.task, {}).setdefault(sample.precision, []).append(sample)
    rates: dict[str, KernelRate] = {}
    for task, by_precision in sorted(kinds.items()):
        for precision, precision_samples in sorted(by_precision.items()):
            name = task if len(by_precision) == 1 else f"{task}.{precision}"
            rates[name] = fit_rate(precision_samples)
    return rates


def fit_rate(samples: Sequence[Sample]) -> KernelRate:
    """The rate that explains the times of some tasks best, rounded to three digits.

    Deviations count relative to the square root of a time: many short tasks weigh as much as one long task that takes
    as long as they together. No term is negative. With fewer than three samples, bytes (or, without bytes, nothing but
    the count) explain the time.
    """
    times = np.array([sample.ms for sample in samples])
    columns = np.array([[1.0, sample.flops, float(sample.size)] for sample in samples])
    scale = np.maximum(columns.max(axis=0), 1e-300)
    known = [k for k in range(3) if len(samples) >= MIN_SAMPLES or k == 2 or not columns[:, 2].any()]
    weights = 1 / np.sqrt(np.maximum(times, 1e-9))
    factors = np.ones_like(times)
    coefficients = np.zeros(3)
    for _ in range(FIT_ROUNDS):
        coefficients = solve_nonnegative(columns / scale, times, weights * factors, known)
        deviation = np.abs(columns / scale @ coefficients / np.maximum(times, 1e-9) - 1)
        factors = np.sqrt(1 / np.maximum(deviation / USUAL_DEVIATION, 1))
    per_task, per_flop, per_byte = (float(value) for value in coefficients / scale)
    return KernelRate(
        round_to_digits(per_task * 1e3),
        round_to_digits(1e3 / per_flop) if per_flop > 0 and columns[:, 1].any() else math.inf,
        round_to_digits(1e-6 / per_byte) if per_byte > 0 and columns[:, 2].any() else math.inf,
    )


def solve_nonnegative(columns: Floats, times: Floats, weights: Floats, known: Sequence[int]) -> Floats:
    """The non-negative factors of the columns in `known` with the least weighted squares; others are zero.

    There are three columns at most, so all sets of them are tried.
    """
    best, best_error = np.zeros(columns.shape[1]), math.inf
    weighted, target = columns * weights[:, None], times * weights
    for size in range(1, len(known) + 1):
        for chosen in itertools.combinations(known, size):
            part, *_ = np.linalg.lstsq(weighted[:, chosen], target, rcond=None)
            error = float(np.sum((weighted[:, chosen] @ part - target) ** 2))
            if part.min() >= 0 and error < best_error * (1 - 1e-9):
                best, best_error = np.zeros(columns.shape[1]), error
                best[list(chosen)] = part
    return best


def round_to_digits(value: float) -> float:
    """Three significant digits: more would say more than a measurement does."""
    return float(f"{value:.{DIGITS}g}")


def list_ratios(samples: Iterable[Sample], rates: Mapping[str, KernelRate]) -> dict[str, list[float]]:
    """Predicted over measured time of every sample, by the name of the rate that explains it."""
    ratios: dict[str, list[float]] = {}
    for sample in samples:
        exact = f"{sample.task}.{sample.precision}"
        name = exact if exact in rates else sample.task
        rate = rates.get(name)
        if rate is not None and sample.ms > 0:
            ratios.setdefault(name, []).append(rate.compute_ms(sample.flops, sample.size) / sample.ms)
    return ratios
