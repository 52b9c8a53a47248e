"""NCCL's rings as exchange programs: the simulator takes what the formula says, and what was measured."""

from __future__ import annotations

from statistics import median

import pytest

from einc.exchange.language.checker import check
from einc.exchange.language.resolve import read_program
from tests.truth.exchanges import load_rows, make_machine, play, replay, time_ring
from tests.truth.programs import WRITERS
from tests.truth.protocols import US_PER_BYTE, load_fabrics

ROWS = load_rows()
FABRICS = load_fabrics()


@pytest.mark.parametrize("collective", WRITERS)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_programs_are_valid(collective: str, ranks: int) -> None:
    assert check(read_program(WRITERS[collective](ranks, 3000))).valid


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_rings_take_what_their_formula_says(collective: str) -> None:
    fabric = FABRICS["H100"]
    row = next(
        row for row in ROWS if row.gpu == "H100" and (row.collective, row.gpus, row.size) == (collective, 8, 1 << 20)
    )
    protocol = fabric.protocols["LL128"]
    played = play(WRITERS[collective](8, row.size), make_machine(8, protocol.gbs, protocol.hop_us))
    copied = row.size / 8 / protocol.copy_gbs * US_PER_BYTE
    assert protocol.start_us + played + copied == pytest.approx(time_ring(row, "LL128", fabric), rel=1e-4)


@pytest.mark.parametrize("gpu", FABRICS)
def test_rings_take_what_was_measured(gpu: str) -> None:
    rows = [row for row in ROWS if row.gpu == gpu and row.gpus < 8 and row.size in (16 << 10, 1 << 20, 64 << 20)]
    assert 0.85 < median(row.us / replay(row, FABRICS[gpu]) for row in rows) < 1.15
