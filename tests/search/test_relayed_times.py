"""The estimate of exchanges between sites that no link joins."""

from __future__ import annotations

import pytest

from einc.core.tensor import TensorType
from einc.machines.load import load_machine
from einc.machines.model import BYTES_PER_MS, Machine, Resource
from einc.search.exchange_times import MISSING_MS, NAIVE, ExchangeEstimator, Family


def estimate(*links: tuple[int, int]) -> float:
    """A transposition of blocks among three sites: each sends 4 million elements of 2 bytes to each other one."""
    site = load_machine("dgx-h100").sites[0]
    resources = tuple(Resource(f"{a}-{b}", 10.0, (pair,)) for a, b in links for pair in ((a, b), (b, a)))
    rows = tuple(TensorType((k * 2000, 0), (k * 2000 + 2000, 6000)) for k in range(3))
    columns = tuple(TensorType((0, k * 2000), (6000, k * 2000 + 2000)) for k in range(3))
    estimator = ExchangeEstimator(Machine("m", (site,) * 3, resources), 3)
    return float(estimator.estimate([Family(rows)], [Family(columns)], 2)[NAIVE, 0, 0])


def test_relayed_bytes_cross_every_link_on_their_way() -> None:
    alone = 8_000_000 / (10.0 * BYTES_PER_MS)
    assert estimate((0, 1), (1, 2), (0, 2)) == pytest.approx(alone, rel=1e-3)
    assert estimate((0, 1), (1, 2)) == pytest.approx(2 * alone, rel=1e-3)  # site 1 passes on what 0 and 2 exchange
    assert estimate((0, 1)) >= MISSING_MS
