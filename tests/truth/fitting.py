"""Fits the forms of collectives to measured times, and keeps their parameters in tests/truth/protocols.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.truth.forms import ALL_TO_ALL, Collectives, PeerKernel, PeerSends, Protocol, SwitchReduction
from tests.truth.nccl import INT8, KERNELS, VERSIONS, Measured, read_kernel, read_nccl

FILE = Path(__file__).with_name("protocols.json")
ADDS_IN_SWITCH = ("h100_sxm",)
"""Where all-reduces of halves are faster than those of bytes, as only switches that add can make them."""
OVER_PCIE = ("l40s",)
LINK_GBS = {"a100_sxm": 300, "h100_sxm": 450, "b200_sxm": 900, "l40s": 25}
"""Where fits start from."""
MAX_DISTANCE = math.log(12)
"""How far a parameter may get from where it starts, so that one that nothing depends on keeps a sensible value."""

Predict = Callable[[Measured], float]
Build = Callable[[Sequence[float]], Predict]
_NO_SENDS = PeerSends(1, 1, 1, 1, 1, 1, 1, 1)


def fit(rows: Iterable[Measured], build: Build, starts: Sequence[Sequence[float]]) -> list[float]:
    """The parameters with the least sum of soft absolute values of log(predicted / measured), over all starts."""
    import numpy as np
    from scipy.optimize import least_squares

    known = list(rows)
    measured = np.log([row.us for row in known])

    def residuals(logarithms: Any) -> Any:
        predict = build(np.exp(logarithms))
        return np.log([predict(row) for row in known]) - measured

    fits = []
    for start in starts:
        middle = np.log(start)
        bounds = (middle - MAX_DISTANCE, middle + MAX_DISTANCE)
        fits.append(least_squares(residuals, middle, bounds=bounds, loss="soft_l1", f_scale=0.05, max_nfev=300))
    return [float(value) for value in np.exp(min(fits, key=lambda found: found.cost).x)]


def fit_collectives(system: str) -> Collectives:
    """Rings (with NVLS, or with shares over PCIe) by one fit, and all-to-all by another."""
    rows = [row for row in read_nccl(system) if not row.is_held_out]
    rings = _fit_rings(system, [row for row in rows if row.collective != ALL_TO_ALL])
    sends, shares = _fit_sends(rings, [row for row in rows if row.collective == ALL_TO_ALL])
    return Collectives(rings.protocols, sends, rings.switch, rings.shares, shares)


def _fit_rings(system: str, rows: list[Measured]) -> Collectives:
    peak = LINK_GBS[system]

    def unpack(x: Sequence[float]) -> Collectives:
        protocols = {name: Protocol(*x[4 * n : 4 * n + 4]) for n, name in enumerate(("LL", "LL128", "Simple"))}
        switch = SwitchReduction(x[12], x[13]) if system in ADDS_IN_SWITCH else None
        shares = {4: x[12], 8: x[13]} if system in OVER_PCIE else {}
        return Collectives(protocols, _NO_SENDS, switch, shares)

    def build(x: Sequence[float]) -> Predict:
        model = unpack(x)
        return lambda row: model.time_us(row.collective, row.size, row.gpus, row.dtype != INT8)

    more = [25, peak * 0.65] if system in ADDS_IN_SWITCH else [0.3, 0.2] if system in OVER_PCIE else []
    first = [5, 0.9, peak / 15, peak / 15, 6, 1.1, peak * 0.4, peak * 0.4, 14, 2, peak * 0.8, peak * 2]
    second = [8, 1.2, peak / 30, peak / 10, 9, 1.4, peak * 0.3, peak, 18, 3, peak * 0.75, peak * 3]
    return unpack(fit(rows, build, [first + more, second + more]))


def _fit_sends(rings: Collectives, rows: list[Measured]) -> tuple[PeerSends, dict[int, float]]:
    peak = rings.protocols["Simple"].gbs

    def unpack(x: Sequence[float]) -> tuple[PeerSends, dict[int, float]]:
        return PeerSends(*x[:8]), ({4: x[8], 8: x[9]} if rings.shares else {})

    def build(x: Sequence[float]) -> Predict:
        sends, shares = unpack(x)
        return lambda row: sends.all_to_all_us(row.size, row.gpus, shares.get(row.gpus, 1.0))

    starts = [
        [0.1, 7, peak / 50, 14, peak / 3, 20, peak * 0.9, peak * 3],
        [0.3, 10, peak / 30, 14, peak / 5, 30, peak, peak * 2],
        [0.3, 10, peak / 60, 12, peak / 15, 22, peak, peak * 2],
        [0.1, 6, peak / 60, 12, peak / 2, 30, peak * 0.8, peak],
    ]
    return unpack(fit(rows, build, [start + ([0.3, 0.2] if rings.shares else []) for start in starts]))


def fit_kernel(system: str, framework: str, version: str) -> PeerKernel:
    """An all-reduce in one kernel."""
    rows = [row for row in read_kernel(system, framework, version) if not row.is_held_out]
    over_pcie, peak = system in OVER_PCIE, LINK_GBS[system]

    def unpack(x: Sequence[float]) -> PeerKernel:
        return PeerKernel(x[0], x[1], x[2], x[3], x[4], {4: x[5], 8: x[6]} if over_pcie else {})

    def build(x: Sequence[float]) -> Predict:
        model = unpack(x)
        return lambda row: model.all_reduce_us(row.size, row.gpus)

    starts = [
        [4, 0.1, peak * 0.7, 2, peak * 0.7, 0.3, 0.2],
        [3, 0.1, peak * 0.5, 4, peak * 0.9, 0.3, 0.2],
        [5, 3, peak * 0.6, 1, peak * 0.75, 0.2, 0.12],
        [4, 3, peak * 0.8, 30, peak * 0.9, 0.75, 0.75],
    ]
    return unpack(fit(rows, build, [start if over_pcie else start[:5] for start in starts]))


def fit_all() -> None:
    """Fits everything that was measured, and writes the file."""
    nccl = {system: asdict(fit_collectives(system)) for system in VERSIONS}
    kernels = {" ".join(key): asdict(fit_kernel(*key)) for key in KERNELS}
    document = _round({"nccl": nccl, "kernels": kernels})
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_parameters() -> tuple[dict[str, Collectives], dict[str, PeerKernel]]:
    """NCCL by system, and the kernels by system, framework and version."""
    document = json.loads(FILE.read_text(encoding="utf-8"))
    collectives = {
        system: Collectives(
            {name: Protocol(**protocol) for name, protocol in entry["protocols"].items()},
            PeerSends(**entry["sends"]),
            SwitchReduction(**entry["switch"]) if entry["switch"] else None,
            _read_shares(entry["shares"]),
            _read_shares(entry["send_shares"]),
        )
        for system, entry in document["nccl"].items()
    }
    kernels = {
        name: PeerKernel(**entry | {"shares": _read_shares(entry["shares"])})
        for name, entry in document["kernels"].items()
    }
    return collectives, kernels


def _read_shares(entry: dict[str, float]) -> dict[int, float]:
    return {int(gpus): share for gpus, share in entry.items()}


def _round(value: Any) -> Any:
    """Four digits, which say as much as the measurements do."""
    if isinstance(value, dict):
        return {str(key): _round(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
