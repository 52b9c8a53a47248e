"""Boxes cut into pieces, and preambles without their names."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.core.tensor import TensorType
from einc.exchange.language.checker import check
from einc.exchange.language.program import Holding, Partition, Program, Requirement
from einc.exchange.simulation.simulator import simulate
from einc.machines.load import load_machine
from einc.physical.budget import SearchBudget
from einc.physical.pieces import cut_block
from einc.physical.preamble import canonicalize, rename_actions
from tests.support.definition_oracle import find_tiling_fault
from tests.support.physical_toys import wild_body


@given(st.data())
def test_pieces_tile_their_box(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    lower = data.draw(st.tuples(*(st.integers(0, 5) for _ in shape)))
    box = TensorType(lower, tuple(lo + extent for lo, extent in zip(lower, shape, strict=True)))
    pieces = data.draw(st.integers(1, min(20, prod(shape[d] for d in dims))))
    cut = cut_block(box, pieces, sorted(dims))
    assert len(cut) == pieces
    moved = [piece for piece in cut if box.contains(piece)]
    shifted = [TensorType(tuple(a - b for a, b in zip(p.lower, lower, strict=True)),
                          tuple(a - b for a, b in zip(p.upper, lower, strict=True))) for p in moved]  # fmt: skip
    assert find_tiling_fault(TensorType.whole(tuple(shape)), tuple(sorted(shifted))) is None
    assert [piece.size for piece in cut] == sorted((piece.size for piece in cut), reverse=True)
    for d in set(range(len(shape))) - dims:
        assert {(piece.lower[d], piece.upper[d]) for piece in cut} == {(box.lower[d], box.upper[d])}


@pytest.mark.parametrize(("shape", "pieces", "spread"), [((1024, 4096), 64, 0), ((4096,), 7, 1), ((1000, 600), 13, .01),
                                                         ((3, 5000), 10, 0.01), ((128, 3, 128), 48, 0.01)])  # fmt: skip
def test_pieces_are_about_equal(shape: tuple[int, ...], pieces: int, spread: float) -> None:
    sizes = [piece.size for piece in cut_block(TensorType.whole(shape), pieces, range(len(shape)))]
    allowed = spread if isinstance(spread, int) else spread * prod(shape) / pieces
    assert max(sizes) - min(sizes) <= allowed


def test_rows_stay_together_where_that_is_even() -> None:
    pieces = cut_block(TensorType.whole((12, 7)), 4, (0, 1))
    assert pieces == [TensorType((n, 0), (n + 3, 7)) for n in range(0, 12, 3)]


def exchange(rng: random.Random, names: list[str]) -> Program:
    holdings = [Holding((name,), (rng.randrange(4),), 10 * (k // 2 + 1)) for k, name in enumerate(names)]
    pairs = [tuple(sorted(names[k : k + 2])) for k in range(0, len(names), 2)]
    partitions = tuple(Partition(f"S{k}", 1, (k,)) for k in range(2))
    requirements = [Requirement(pair, (rng.choice(("S0", "S1")),)) for pair in pairs]
    return Program((0, 1, 2, 3), partitions, tuple(holdings), tuple(requirements), ())


@pytest.mark.parametrize("seed", range(20))
def test_names_do_not_matter_and_come_back(seed: int) -> None:
    """The body for one naming, renamed to another whose order is different, is as valid and takes as long."""
    names = [f"{letter}{k}" for k in range(1, 13) for letter in "XY"]
    changed = [f"act_{letter}{k}" for k in range(12, 0, -1) for letter in "ZA"]
    first, second = (exchange(random.Random(seed), list(listed)) for listed in (names, changed))
    forms = [canonicalize(program, dict.fromkeys(listed, 5)) for program, listed in ((first, names), (second, changed))]
    assert forms[0].program == forms[1].program
    assert forms[0].max_pieces == forms[1].max_pieces
    machine = load_machine("dgx-a100").restrict(range(4))
    body = wild_body(forms[0].program, random.Random(seed), 4)
    for form, program in zip(forms, (first, second), strict=True):
        back = dict(form.names)
        renamed = replace(program, actions=rename_actions(body.actions, back.__getitem__))
        assert check(renamed, machine).valid
        assert simulate(renamed, machine).completion_ms == pytest.approx(simulate(body, machine).completion_ms)


def test_sizes_and_holders_do_matter() -> None:
    names = ["X1", "Y1"]
    program = exchange(random.Random(1), names)
    assert program.holdings[0].sites != (3,) or program.holdings[1].sites != (3,)
    larger = replace(program, holdings=tuple(replace(holding, size=11) for holding in program.holdings))
    elsewhere = replace(program, holdings=tuple(replace(holding, sites=(3,)) for holding in program.holdings))
    forms = {canonicalize(p, dict.fromkeys(names, 5)).program for p in (program, larger, elsewhere)}
    assert len(forms) == 3


def test_a_budget_is_shared_and_ends() -> None:
    budget = SearchBudget(100.0)
    with pytest.raises(KeyboardInterrupt):
        budget.interrupt()  # before the search
    budget.begin()
    assert 0 < budget.share(30) <= 10.0
    assert 99 < budget.share(1) <= 100.0
    with budget.catch_interrupt():
        budget.interrupt()
        raise AssertionError("the interrupt ends the search")
    assert budget.interrupted
    assert budget.share(1) == 0
    with pytest.raises(KeyboardInterrupt):
        budget.interrupt()  # the second one is meant for the program
    unlimited = SearchBudget()
    unlimited.begin()
    assert unlimited.share(10) == float("inf")
    unlimited.interrupt()
    assert unlimited.interrupted
