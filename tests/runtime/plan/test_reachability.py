"""Ancestors of tasks against a plain transitive closure, in chunks of few positions; and what they take."""

from __future__ import annotations

import random

import pytest

from einc_runtime.plan import reachability
from einc_runtime.plan.reachability import TaskAncestors
from einc_runtime.plan.schema import FenceTask


def random_tasks(rng: random.Random, count: int) -> list[FenceTask]:
    """Near and far dependencies, and tasks that none depends on."""
    chosen = [
        {max(0, n - rng.choice([1, 1, 2, 5, 40])) for _ in range(rng.choice([0, 1, 2, 4]))} - {n} for n in range(count)
    ]
    return [FenceTask(0, "t", tuple(sorted(after))) for after in chosen]


@pytest.mark.parametrize("seed", range(8))
def test_ancestors_are_those_of_the_transitive_closure(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "CHUNK_POSITIONS", [8, 16, 64, 1024][seed % 4])
    rng = random.Random(seed)
    tasks = random_tasks(rng, 200)
    ancestors = TaskAncestors(tasks)
    known: list[set[int]] = []
    for position, task in enumerate(tasks):
        ancestors.enter(position)
        known.append(set(task.after).union(*(known[before] for before in task.after)))
        assert ancestors.unfinished(range(210)) == [p for p in range(210) if p not in known[position]]
        assert [p for p in range(210) if ancestors.ended(p)] == sorted(known[position])
        for fence in ancestors.find_fences():
            for earlier in rng.sample(range(position), min(position, 20)):
                assert ancestors.comes_after(fence, [earlier]) == (earlier in known[fence] | {fence})


def test_many_fences_in_a_chain_that_all_stay_take_little() -> None:
    """As one set of bits for each they take 156 MB; the last task waits for all of them."""
    count = 50_000
    tasks = [FenceTask(0, "t", (n - 1,) if n else ()) for n in range(count)]
    tasks.append(FenceTask(0, "t", tuple(range(count))))
    ancestors = TaskAncestors(tasks)
    most = 0
    for position in range(count):
        ancestors.enter(position)
        most = max(most, ancestors._live)
    assert most < 110_000_000  # a whole chunk is counted for each; the first ones are shared
    assert ancestors.unfinished([0, 1, count - 2, count - 1]) == [count - 1]
