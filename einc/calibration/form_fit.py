"""Fits the rates of one kind of kernels on GPUs to measured shapes: the parameters of the form, then the tables of
what it leaves.

Both `einc machine calibrate`, of what it has measured, and `make fit-rates`, of what others have, come here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from einc.calibration.corrections import as_correction, fit_values, interpolate
from einc.calibration.forms import Form
from einc.machines.catalogue import DataSheet, round_rates, scale_rates
from einc.machines.gpu import Correction, MeasuredRates

Array = NDArray[np.float64]

FITTED = 6000
"""Shapes that the fit of a form looks at, a random part of those that are known. The tables are fitted to all."""


class Shapes(Protocol):
    """Kernels of one kind that were measured on one GPU."""

    @property
    def us(self) -> Array:
        """The measured times."""

    def time(self, rates: MeasuredRates) -> Array:
        """The times of the form, without corrections, in microseconds."""

    def sizes(self) -> Mapping[str, Array]:
        """The sizes that tables are over."""

    def choose(self, selection: NDArray[np.generic]) -> Self:
        """Some of them, by a mask or by their positions."""


_Shapes = TypeVar("_Shapes", bound=Shapes)


def fit_rates(form: Form, sheet: DataSheet, shapes: Shapes, held_out: NDArray[np.bool_]) -> MeasuredRates:
    """Rates that are fitted to the shapes that are not held out; their error is that of those that are."""
    known = shapes.choose(~held_out)
    unit = fit_form(form, {sheet: choose_some(known, FITTED)})
    rates = round_rates(scale_rates(unit, sheet))
    log_ratio = np.log(known.us / known.time(rates))
    values = fit_values(form.knots, form.tables, known.sizes(), log_ratio, scale=form.scale)
    rates = msgspec.structs.replace(rates, correction=as_correction(form.knots, form.tables, values))
    return msgspec.structs.replace(rates, error=round(min(1.0, find_error(rates, shapes.choose(held_out))), 3))


def find_error(rates: MeasuredRates, shapes: Shapes) -> float:
    """Within which part of the predicted time 80% of the measured ones are."""
    return float(np.quantile(np.abs(shapes.us / predict_us(rates, shapes) - 1.0), 0.8))


def predict_us(rates: MeasuredRates, shapes: Shapes) -> Array:
    """The form's times, and the tables' corrections."""
    plain = shapes.time(rates)
    return plain if rates.correction is None else plain * correct(rates.correction, shapes.sizes())


def correct(correction: Correction, sizes: Mapping[str, Array]) -> Array:
    """What to multiply the form's times by."""
    knots = {knot.size: knot.at for knot in correction.knots}
    tables = [table.sizes for table in correction.tables]
    values = np.concatenate([table.values for table in correction.tables])
    factors: Array = np.exp(interpolate(knots, tables, sizes) @ values)
    return factors


def choose_some(shapes: _Shapes, count: int) -> _Shapes:
    """A random part of the shapes, always the same."""
    return shapes.choose(np.random.default_rng(0).permutation(len(shapes.us))[:count])


def fit_form(form: Form, parts: Mapping[DataSheet, Shapes]) -> MeasuredRates:
    """The rates of the unit GPU of least robust error, over shapes of one or several GPUs."""
    from scipy.optimize import least_squares

    names = list(form.free)
    first, least, most = (np.log([form.free[name][i] for name in names]) for i in range(3))
    measured_us = np.concatenate([part.us for part in parts.values()])
    solutions = []
    for choice in form.choices:
        rates: dict[str, Any] = {**choice, **dict.fromkeys(names, 1.0)}
        start = form.rates(dtype="bf16", multiprocessors=1, error=0.0, **rates)

        def replace(x: Array, start: MeasuredRates = start) -> MeasuredRates:
            return msgspec.structs.replace(start, **dict(zip(names, map(float, np.exp(x)), strict=True)))

        def find_errors(x: Array, replace: Callable[[Array], MeasuredRates] = replace) -> Array:
            unit = replace(x)
            predicted = [part.time(scale_rates(unit, sheet)) for sheet, part in parts.items()]
            errors: Array = np.log(measured_us / np.concatenate(predicted))
            return errors

        optimum = least_squares(
            find_errors, first, bounds=(least, most), loss="soft_l1", f_scale=form.scale, diff_step=1e-3, max_nfev=80
        )
        solutions.append((float(optimum.cost), replace(optimum.x)))
    return min(solutions, key=lambda solution: solution[0])[1]
