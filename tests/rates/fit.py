"""Fits the rates of one kind of kernels to the tables, and says how well they predict what was held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from einc.calibration import form_fit
from einc.machines.catalogue import DataSheet
from einc.machines.gpu import ExpertsRates, MeasuredRates
from tests.rates.forms import Array, LayerRates
from tests.rates.kinds import KINDS, MeasuredShapes
from tests.rates.measurements import Measured, held_out

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
    kind, test = KINDS[name], held_out(measured)
    shapes = MeasuredShapes(kind, measured)
    rates = form_fit.fit_rates(kind.form, sheet, shapes, test)
    return rates, measure_accuracy(measured.us[test], form_fit.predict_us(rates, shapes.choose(test)))


def fit_unit(name: str, measured: Mapping[DataSheet, Measured]) -> MeasuredRates:
    """The rates of the unit GPU that are best for all of these GPUs, with as many shapes of each."""
    kind = KINDS[name]
    shapes = {
        sheet: form_fit.choose_some(MeasuredShapes(kind, measured_of_gpu), FITTED_JOINTLY)
        for sheet, measured_of_gpu in measured.items()
    }
    return form_fit.round_rates(form_fit.fit_form(kind.form, shapes))


def as_committed(rates: MeasuredRates) -> MeasuredRates:
    """What of the rates belongs in einc."""
    if not isinstance(rates, LayerRates):
        return rates
    return ExpertsRates(**{name: getattr(rates, name) for name in ExpertsRates.__struct_fields__})
