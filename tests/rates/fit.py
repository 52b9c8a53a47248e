"""Fits the rates of one kind of kernels on one GPU: the parameters of the form, then the tables of what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from einc.machines.datasheets import DataSheet, round_rates, scale_rates
from einc.machines.gpu import ExpertsRates, MeasuredRates
from tests.rates.forms import Array, LayerRates
from tests.rates.kinds import KINDS, Kind
from tests.rates.measurements import Measured, held_out
from tests.rates.residuals import as_correction, fit_values, interpolation

FITTED = 6000
"""Shapes that the fit of a form looks at, a random part of the 80%. The tables are fitted to all of these."""

FITTED_JOINTLY = 1500
"""Shapes of each GPU that a fit of the unit GPU looks at, a random part."""


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


def fit_rates(name: str, sheet: DataSheet, measured: Measured) -> tuple[MeasuredRates, Accuracy]:
    """Rates that are fitted to 80% of the shapes, and how well they predict the others."""
    kind = KINDS[name]
    test = held_out(measured)
    known = measured.chosen(~test)
    unit = fit_form(kind, {sheet: choose(known, FITTED)})
    form = round_rates(scale_rates(unit, sheet))
    log_ratio = np.log(known.us / kind.time(form, known.sizes))
    values = fit_values(kind.knots, kind.tables, kind.sizes(known.sizes), log_ratio, scale=kind.scale)
    correction = as_correction(kind.knots, kind.tables, values)
    predicted = predict_us(kind, msgspec.structs.replace(form, correction=correction), measured.chosen(test))
    accuracy = measure_accuracy(measured.us[test], predicted)
    return msgspec.structs.replace(form, correction=correction, error=round(accuracy.most, 3)), accuracy


def fit_unit(name: str, measured: Mapping[DataSheet, Measured]) -> MeasuredRates:
    """The rates of the unit GPU that are best for all of these GPUs, with as many shapes of each."""
    parts = {sheet: choose(shapes, FITTED_JOINTLY) for sheet, shapes in measured.items()}
    return round_rates(fit_form(KINDS[name], parts))


def choose(measured: Measured, count: int) -> Measured:
    """A random part of the shapes, always the same."""
    return measured.chosen(np.random.default_rng(0).permutation(len(measured.us))[:count])


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


def fit_form(kind: Kind, parts: Mapping[DataSheet, Measured]) -> MeasuredRates:
    """The rates of the unit GPU of least robust error, over shapes of one or several GPUs."""
    names = list(kind.free)
    first, least, most = (np.log([kind.free[name][i] for name in names]) for i in range(3))
    solutions = []
    for choice in kind.choices:
        start = kind.rates(dtype="bf16", multiprocessors=1, error=0.0, **choice, **dict.fromkeys(names, 1.0))

        def replace(x: Array, start: MeasuredRates = start) -> MeasuredRates:
            return msgspec.structs.replace(start, **dict(zip(names, map(float, np.exp(x)), strict=True)))

        def find_errors(x: Array, replace: Callable[[Array], MeasuredRates] = replace) -> Array:
            unit = replace(x)
            predicted = [kind.time(scale_rates(unit, sheet), part.sizes) for sheet, part in parts.items()]
            return np.log(np.concatenate([part.us for part in parts.values()]) / np.concatenate(predicted))

        found = least_squares(
            find_errors, first, bounds=(least, most), loss="soft_l1", f_scale=kind.scale, diff_step=1e-3, max_nfev=80
        )
        solutions.append((found.cost, replace(found.x)))
    return min(solutions, key=lambda solution: solution[0])[1]
