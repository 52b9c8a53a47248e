"""The proof of large plans: its time is bounded, and plans that would take longer are refused."""

import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan import reachability
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import FenceTask
from tests.support.changed_plans import appended, gathered, long_plan
from tests.support.handmade_plans import random_plan, two_site_plan
from tests.support.paced import within

PLAN = two_site_plan()


def test_a_buffer_of_many_parts_takes_no_more_looks_than_parts(monkeypatch):
    from einc_runtime.plan import proof

    plan, _ = gathered(400)
    monkeypatch.setattr(proof, "MAX_PROOF_STEPS", 20 * 400)
    prove(plan)


def test_twenty_thousand_tasks_are_proved_in_seconds():
    plan = long_plan(20_000)
    assert len(plan.tasks) >= 20_000
    with within(20):
        prove(plan)


def test_plans_too_large_to_prove_are_refused(monkeypatch):
    monkeypatch.setattr(reachability, "MAX_TRAFFIC", 100)
    with pytest.raises(PlanFault, match="too many to prove"):
        prove(long_plan(100))
    monkeypatch.undo()
    monkeypatch.setattr(reachability, "MAX_LIVE", 3)
    with pytest.raises(PlanFault, match="too many to prove"):
        prove(appended(PLAN, *(FenceTask(0, "y", (11,)) for _ in range(20)), FenceTask(0, "y", tuple(range(12, 32)))))


def test_scattered_pieces_take_bounded_time(monkeypatch):
    """Many small writes and as many reads across them: refused once they take too long, not before."""
    from einc_runtime.plan import proof

    plan = random_plan(11, 5, 5)
    prove(plan)
    monkeypatch.setattr(proof, "MAX_PROOF_STEPS", 3)
    with pytest.raises(PlanFault, match="too complex"):
        prove(plan)
