"""A limit of time is kept, and more time never gives a slower plan: with a clock that counts how often it is read."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from einc.frontend import build as build_graph
from einc.graph.fuse import fuse
from einc.machines.load import load_machine
from einc.physical.budget import SearchBudget
from einc.search.fastest import find_fastest

MODELS = Path(__file__).parents[2] / "models"
TICK = 0.01
"""Seconds that pass whenever somebody asks for the time."""
GRACE = 0.5
"""What has begun is ended: the first plan, and what an exchange needs to be complete."""


def plan_within(model: str, definitions: tuple[tuple[str, str], ...], sites: int, limit: float) -> tuple[float, float]:
    """The predicted ms of the plan that is found in so many seconds, and the seconds that it took."""
    text = (MODELS / f"{model}.ein").read_text(encoding="utf-8")
    graph = fuse(build_graph(text, f"{model}.ein", definitions, None, None))
    ticks = itertools.count()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("time.monotonic", lambda: TICK * next(ticks))
        fastest = find_fastest(graph, load_machine("dgx-v100"), sites, naive=False, budget=SearchBudget(limit))
    assert fastest.program is not None
    return fastest.program.predicted_ms, TICK * next(ticks)


def require_no_slower(model: str, definitions: tuple[tuple[str, str], ...], sites: int, limits: list[float]) -> None:
    predicted = [plan_within(model, definitions, sites, limit) for limit in limits]
    times = [ms for ms, _ in predicted]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]
    for limit, (_, took) in zip(limits, predicted, strict=True):
        assert took <= limit + GRACE


def test_more_time_gives_no_slower_plan() -> None:
    require_no_slower("chain_b", (("scale", "2"),), 4, [0.001, 4.0])


@pytest.mark.slow
def test_ever_more_time_gives_no_slower_plan() -> None:
    require_no_slower("chain_a", (), 3, [0.001, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
