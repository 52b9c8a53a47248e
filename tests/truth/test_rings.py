"""The programs of NCCL's rings take, in the simulator, what the formula of a ring says, and what was measured."""

from __future__ import annotations

from statistics import median

import pytest

from einc.exchange.language.checker import check
from einc.exchange.language.resolve import read_program
from tests.truth.fitting import read_parameters
from tests.truth.forms import ALL_GATHER, ALL_REDUCE, COLLECTIVES, REDUCE_SCATTER
from tests.truth.nccl import read_file
from tests.truth.programs import write_all_to_all, write_collective, write_one_shot, write_two_shot
from tests.truth.ratios import is_within
from tests.truth.reasons import explain
from tests.truth.replaying import make_pairs, make_switch, play_us, replay, replay_kernel

SYSTEMS = ("a100_sxm", "h100_sxm", "b200_sxm", "l40s")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_programs_are_valid(ranks: int) -> None:
    texts = [write_collective(collective, ranks, 3000) for collective in COLLECTIVES]
    for text in (*texts, write_one_shot(ranks, 3000), write_two_shot(ranks, 3000)):
        assert check(read_program(text)).valid


@pytest.mark.parametrize(("collective", "steps"), [(ALL_REDUCE, 6), (ALL_GATHER, 3), (REDUCE_SCATTER, 3)])
def test_a_ring_takes_a_hop_and_a_chunk_for_each_step(collective: str, steps: int) -> None:
    text = write_collective(collective, 4, 4_000_000)
    assert play_us(text, make_switch(4, 100.0, 1.5)) == pytest.approx(steps * (1.5 + 10.0), rel=1e-4)


def test_sends_to_all_share_a_port_or_have_a_link_each() -> None:
    text = write_all_to_all(4, 4_000_000)
    assert play_us(text, make_switch(4, 100.0)) == pytest.approx(30.0, rel=1e-4)
    assert play_us(text, make_pairs(4, 100.0)) == pytest.approx(10.0, rel=1e-4)


def test_kernels_read_whole_buffers_or_a_part_twice() -> None:
    assert play_us(write_one_shot(4, 1_000_000), make_switch(4, 100.0)) == pytest.approx(30.0, rel=1e-4)
    assert play_us(write_two_shot(4, 1_000_000), make_switch(4, 100.0)) == pytest.approx(15.0, rel=1e-4)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("gpus", [2, 8])
def test_replayed_collectives_take_what_their_form_says(collective: str, gpus: int) -> None:
    model = read_parameters()[0]["h100_sxm"]
    for size in (4096, 1 << 20, 64 << 20):
        assert replay(model, collective, size, gpus) == pytest.approx(model.time_us(collective, size, gpus), rel=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("system", SYSTEMS)
def test_replayed_collectives_take_what_was_measured(system: str) -> None:
    model = read_parameters()[0][system]
    table, rows = next(item for item in read_file().items() if item[0].startswith(f"{system} nccl"))
    sampled = [row for row in rows if row.size in (4 << 10, 1 << 20, 64 << 20)]
    ratios = {row: row.us / replay(model, row.collective, row.size, row.gpus) for row in sampled}
    assert is_within(median(ratios.values()), 1.15)
    assert not [row.title for row, ratio in ratios.items() if not is_within(ratio, 1.5) and not explain(table, row)]


def test_replayed_kernels_take_what_was_measured() -> None:
    kernels = read_parameters()[1]
    for table, kernel in kernels.items():
        rows = [row for row in read_file()[table] if row.size in (1 << 10, 256 << 10)]
        ratios = [row.us / replay_kernel(kernel, row.size, row.gpus) for row in rows]
        assert is_within(median(ratios), 1.15)
