"""GPUs that were left out: kernels that are predicted from a data sheet, by what was fitted to other GPUs.

The rates of a unit GPU (`einc.machines.catalogue`) are fitted to all other GPUs at once, without tables. A GPU whose
chip another one has, too, is left out together with it, as GPUs that nobody measured have no such twins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from einc.machines.catalogue import load_catalogue, scale_rates
from einc.machines.gpu import MeasuredRates
from tests.rates.fit import Accuracy, as_committed, fit_unit, measure_accuracy
from tests.rates.kinds import KINDS
from tests.rates.measurements import Measured

SIX = ("a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "l40s")
"""The GPUs that the unit GPU is fitted to. The others that were measured only test it: B300 and GB300 have nearly the
chip of B200, which would count four times."""

TWINS = {"h100-sxm": "h200-sxm", "h200-sxm": "h100-sxm", "b200-sxm": "gb200", "gb200": "b200-sxm"}


@dataclass(frozen=True)
class LeftOut:
    gpu: str
    kind: str
    without: tuple[str, ...]
    """The GPUs of the six that the rates were not fitted to."""
    accuracy: Accuracy


def fit_without(kind: str, measured: Mapping[str, Measured], without: tuple[str, ...]) -> MeasuredRates:
    sheets = load_catalogue()
    return fit_unit(kind, {sheets[name]: measured[name] for name in SIX if name not in without})


def check_scaled(kind: str, unit: MeasuredRates, name: str, measured: Measured) -> Accuracy:
    predicted = KINDS[kind].time(scale_rates(unit, load_catalogue()[name]), measured.sizes)
    return measure_accuracy(measured.us, predicted)


def leave_out(kind: str, measured: Mapping[str, Measured]) -> Iterator[LeftOut]:
    """Each GPU that was measured, predicted by others."""
    groups = {tuple(sorted({name, TWINS.get(name, name)})) for name in SIX}
    for without in sorted(groups, key=lambda group: SIX.index(group[0])):
        unit = fit_without(kind, measured, without)
        yield from (LeftOut(name, kind, without, check_scaled(kind, unit, name, measured[name])) for name in without)
    unit = fit_without(kind, measured, ())
    for name in measured:
        if name not in SIX:
            yield LeftOut(name, kind, (), check_scaled(kind, unit, name, measured[name]))


def fit_unit_rates(kind: str, measured: Mapping[str, Measured], left_out: list[LeftOut]) -> MeasuredRates:
    """The rates of the unit GPU for all six. Their error is that of the GPU that was predicted worst."""
    error = round(max(row.accuracy.most for row in left_out), 3)
    return msgspec.structs.replace(as_committed(fit_without(kind, measured, ())), error=min(1.0, error))
