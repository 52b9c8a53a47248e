"""Fits the rates of one kind of kernels on one GPU: the parameters of the form, then the tables of what it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from einc.machines.datasheets import DataSheet
from einc.machines.gpu import ExpertsRates, MeasuredRates
from tests.rates.forms import Array, LayerRates
from tests.rates.kinds import KINDS, Kind
from tests.rates.measurements import Measured, held_out
from tests.rates.residuals import as_correction, fit_values, interpolation

FITTED = 6000
"""Shapes that the fit of a form looks at, a random part of the 80%. The tables are fitted to all of these."""


@dataclass(frozen=True)
class Accuracy:
    """Of measured over predicted times, for shapes that were held out."""

    shapes: int
    median: float
    most: float
    """Within which part of the predicted time 80% of the measured ones are."""
    nearly_all: float
    """The same for 95%."""
    rank: float


def measure_accuracy(measured_us: Array, predicted_us: Array) -> Accuracy:
    ratio = measured_us / predicted_us
    most, nearly_all = np.quantile(np.abs(ratio - 1.0), [0.8, 0.95])
    rank = spearmanr(measured_us, predicted_us)[0]
    return Accuracy(len(ratio), float(np.median(ratio)), float(most), float(nearly_all), float(rank))


def fit_rates(name: str, sheet: DataSheet, start: MeasuredRates, measured: Measured) -> tuple[MeasuredRates, Accuracy]:
    """Rates that are fitted to 80% of the shapes, from `start` on, and how well they predict the others."""
    kind = KINDS[name]
    test = held_out(measured)
    known = measured.chosen(~test)
    part = known.chosen(np.random.default_rng(0).permutation(len(known.us))[:FITTED])
    form = fit_form(kind, as_layer(start), kind.limit(sheet, float(measured.us.min())), part)
    correction = None
    if kind.tables:
        log_ratio = np.log(known.us / kind.time(form, known.sizes))
        values = fit_values(kind.knots, kind.tables, kind.sizes(known.sizes), log_ratio, scale=kind.scale)
        correction = as_correction(kind.knots, kind.tables, values)
    rates = msgspec.structs.replace(form, correction=correction)
    accuracy = measure_accuracy(measured.us[test], predict_us(kind, rates, measured.chosen(test)))
    return msgspec.structs.replace(rates, error=round(accuracy.most, 3)), accuracy


def check_rates(name: str, sheet: DataSheet, rates: MeasuredRates, measured: Measured) -> Accuracy:
    """How well rates predict the shapes that are held out. What a layer of experts has beside its products, rates do
    not say: this alone is fitted."""
    kind = KINDS[name]
    test = held_out(measured)
    if isinstance(rates, ExpertsRates):
        known = measured.chosen(~test)
        part = known.chosen(np.random.default_rng(0).permutation(len(known.us))[:FITTED])
        free = kind.limit(sheet, float(measured.us.min()))
        rates = fit_form(kind, as_layer(rates), {name: free[name] for name in ("row_passes", "route_ns")}, part)
    return measure_accuracy(measured.us[test], predict_us(kind, rates, measured.chosen(test)))


def as_layer(rates: MeasuredRates) -> MeasuredRates:
    """Experts were measured as whole layers, which have more parameters; others stay as they are."""
    if not isinstance(rates, ExpertsRates):
        return rates
    return LayerRates(**msgspec.structs.asdict(rates), row_passes=1.0, route_ns=0.3)


def as_committed(rates: MeasuredRates) -> MeasuredRates:
    """What of the rates belongs in einc."""
    if not isinstance(rates, LayerRates):
        return rates
    return ExpertsRates(**{name: getattr(rates, name) for name in ExpertsRates.__struct_fields__})


def predict_us(kind: Kind, rates: MeasuredRates, measured: Measured) -> Array:
    """The form's times, and the tables' corrections."""
    plain = kind.time(rates, measured.sizes)
    if rates.correction is None:
        return plain
    knots = {knot.size: knot.at for knot in rates.correction.knots}
    tables = [table.sizes for table in rates.correction.tables]
    values = np.concatenate([table.values for table in rates.correction.tables])
    return plain * np.exp(interpolation(knots, tables, kind.sizes(measured.sizes)) @ values)


def fit_form(
    kind: Kind, start: MeasuredRates, free: Mapping[str, tuple[float, float]], measured: Measured
) -> MeasuredRates:
    """The rates of least robust error of logarithms. `free`: within which limits which parameters are fitted."""
    names = list(free)
    least, most = (np.log([free[name][i] for name in names]) for i in (0, 1))
    first = np.log([max(getattr(start, name), 1e-12) for name in names])

    def replace(x: Array) -> Any:
        values = {name: float(f"{value:.4g}") for name, value in zip(names, np.exp(x), strict=True)}
        return msgspec.structs.replace(start, **values)

    def replace_exactly(x: Array) -> Any:
        return msgspec.structs.replace(start, **dict(zip(names, map(float, np.exp(x)), strict=True)))

    goal = np.log(measured.us)
    solution = least_squares(
        lambda x: goal - np.log(kind.time(replace_exactly(x), measured.sizes)),
        np.clip(first, least + 1e-6, most - 1e-6),
        bounds=(least, most),
        loss="soft_l1",
        f_scale=kind.scale,
        diff_step=1e-3,
        max_nfev=80,
    )
    return replace(solution.x)
