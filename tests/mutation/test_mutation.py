"""Plans that have been changed and sealed again: refused, or the same in meaning; never a crash, a hang or a bug."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from einc_runtime.plan.codec import decode
from tests.mutation.campaign import judge_one, run_campaign
from tests.mutation.fields import list_field_edits
from tests.mutation.judging import SAME
from tests.mutation.plans import CASES, make_plan
from tests.mutation.running import GuardedArenas, OutOfBounds, RunningProcess
from tests.support.plan_figures import read

SMALL = (
    "chain",
    "chain-one-site",
    "once",
    "softmax-rows",
    "attention-sequence",
    "largest",
    "rows",
    "states",
    "quantized",
)


@pytest.mark.parametrize(
    ("count", "cases"), [(100, SMALL), pytest.param(100_000, tuple(CASES), marks=pytest.mark.slow)]
)
def test_changed_plans_are_refused_or_mean_the_same(count: int, cases: tuple[str, ...]) -> None:
    counts = run_campaign(count, 0, cases)
    assert counts.mutants > 0.9 * count
    assert counts.faults == []


def test_every_field_is_changed_in_several_ways() -> None:
    """Of a plan that has records of all kinds, each value is changed, and no change is listed twice."""
    plan = read(make_plan("once"))
    names = [name for _, name, _ in list_field_edits(plan)]
    assert len(names) == len(set(names))
    ways: dict[str, int] = {}
    for name in names:
        ways[name.partition(":")[0]] = ways.get(name.partition(":")[0], 0) + 1

    def walk(value: object, place: str) -> None:
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, part in parts:
            inner = f"{place}.{key}" if place else str(key)
            empty = isinstance(part, dict) and not part
            assert ways.get(inner, 0) >= (1 if empty else 2), inner
            walk(part, inner)

    walk(plan, "")


def test_a_name_makes_the_same_mutant_again() -> None:
    assert judge_one("chain", "producer:longer").outcome == SAME
    assert judge_one("chain", "tasks.3.site:largest").outcome == "refused when read"


def test_the_judge_sees_wrong_results() -> None:
    """`run_plan` and the reference are compared at all: other arrays give other results."""
    from tests.mutation import judging

    process = RunningProcess()
    try:
        meaning = judging.find_meaning("softmax-rows", process)
    finally:
        process.stop()
    other = {name: array[::-1] for name, array in meaning.expected.items()}
    assert judging._find_difference(meaning.expected, meaning) is None
    assert judging._find_difference(other, meaning)


def test_steps_go_on_with_the_states_of_the_step_before() -> None:
    """What a plan gives in its steps is what the definition gives; without the first of them, it would be other."""
    from tests.mutation import judging

    process = RunningProcess()
    try:
        meaning = judging.find_meaning("states", process)
        bundle = decode(make_plan("states"))
        later = process.run(bundle, [{**meaning.steps[0], **step} for step in meaning.steps[1:]])
        untouched = process.run(bundle, [{k: v for k, v in meaning.steps[0].items() if k != "cache"}])
    finally:
        process.stop()
    assert isinstance(later, dict)
    assert isinstance(untouched, dict)
    assert sorted({name.partition(" ")[0] for name in meaning.expected}) == ["cache", "y"]
    for name in ("cache", "y"):
        assert not np.allclose(later[f"{name} of step 1"], meaning.expected[f"{name} of step 2"])
    cache = untouched["cache of step 0"]
    assert not cache[:, [1, 2, 3, 5, 6, 7, 8, 10]].any()
    assert cache[:, [4, 0, 9]].all()


def test_memory_is_guarded() -> None:
    guarded = GuardedArenas()
    arena = guarded.allocate(100)
    assert arena.size == 100
    assert arena.ctypes.data % 64 == 0
    arena[:] = 1
    guarded.check()
    np.lib.stride_tricks.as_strided(arena, (104,))[100] = 1
    with pytest.raises(OutOfBounds):
        guarded.check()


def test_a_run_that_dies_is_told() -> None:
    process = RunningProcess()
    try:
        process._start()
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.join()
        answer = process.run(None, {})  # type: ignore[arg-type]
        assert isinstance(answer, str)
        assert answer.startswith("died")
    finally:
        process.stop()


def test_all_cases_differ() -> None:
    kinds = {(case.source, case.machine, case.sites, str(case.options), case.cuts) for case in CASES.values()}
    assert len(kinds) == len(CASES) >= 20
