"""Every millisecond of a predicted timeline is accounted for, once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.predict.breakdown import break_down, find_critical_chain
from einc.predict.costs import TaskCost, TaskKind
from einc.predict.timeline import time_tasks
from tests.support.predict_cases import graphs, machines, pair

GB = 10**9


def test_by_hand():
    works = (
        TaskCost(TaskKind.KERNEL, 0, (), GB),  # 0 to 10
        TaskCost(TaskKind.TRANSFER, 0, (0,), GB // 10, target=1),  # 10 to 20
        TaskCost(TaskKind.KERNEL, 1, (), GB // 2),  # 0 to 5
        TaskCost(TaskKind.COMBINE, 1, (1, 2), GB),  # 20 to 30
        TaskCost(TaskKind.KERNEL, 1, (3,), GB),  # 30 to 40
    )
    labels = ["a", "b", "a", "b", "b"]
    machine = pair()
    breakdown = break_down(works, labels, time_tasks(works, machine), machine, [1] * len(works))
    a, b = breakdown.labels["a"], breakdown.labels["b"]
    assert (a.compute, a.combine, a.waiting, a.exchange, a.critical) == pytest.approx((7.5, 0, 0, 0, 10))
    assert (b.compute, b.combine, b.waiting, b.exchange, b.critical) == pytest.approx((5, 5, 7.5, 10, 30))
    assert ((a.start, a.end), (b.start, b.end)) == (pytest.approx((0, 10)), pytest.approx((10, 40)))
    assert breakdown.tail == pytest.approx(15)
    assert breakdown.sites == pytest.approx((10, 25))
    assert breakdown.critical == pytest.approx((20, 10, 10))
    out, back = breakdown.links
    assert (out.name, out.carried, out.busy, out.full) == ("0>1", GB // 10, pytest.approx(10), pytest.approx(10))
    assert (back.carried, back.busy) == (0, 0)


def test_a_link_that_is_not_used_in_full_is_busy_for_longer():
    machine = pair(transfer=5000.0)
    works = (TaskCost(TaskKind.TRANSFER, 0, (), GB, target=1), TaskCost(TaskKind.TRANSFER, 0, (), GB, target=1))
    (link, _) = break_down(works, "ab", time_tasks(works, machine), machine, [1, 1]).links
    assert (link.busy, link.full) == pytest.approx((200, 200))
    works = (works[0], TaskCost(TaskKind.TRANSFER, 0, (0,), GB, target=1))  # 5 ms of latency between the two
    (link, _) = break_down(works, "ab", time_tasks(works, machine), machine, [1, 1]).links
    assert (link.busy, link.full) == pytest.approx((200, 200))


@given(st.data())
def test_sums(data):
    machine = data.draw(machines())
    works = data.draw(graphs(len(machine.sites)))
    labels = [data.draw(st.sampled_from("xyz")) for _ in works]
    times = time_tasks(works, machine)
    breakdown = break_down(works, labels, times, machine, [1] * len(works))
    spent = breakdown.labels.values()
    close = {"rel": 1e-9, "abs": 1e-9}
    assert sum(s.critical for s in spent) == pytest.approx(times.predicted_ms, **close)
    assert sum(breakdown.critical) == pytest.approx(times.predicted_ms, **close)
    assert sum(s.compute + s.combine + s.waiting for s in spent) + breakdown.tail == pytest.approx(
        times.predicted_ms, **close
    )
    assert sum(breakdown.sites) / len(breakdown.sites) == pytest.approx(
        sum(s.compute + s.combine for s in spent), **close
    )
    for link in breakdown.links:
        assert link.full <= link.busy + 1e-9 <= times.predicted_ms + 2e-9
    for s in spent:
        assert 0 <= s.exchange <= s.end - s.start + 1e-9


@given(st.data())
def test_the_chain_leads_from_the_beginning_to_the_end(data):
    machine = data.draw(machines())
    works = data.draw(graphs(len(machine.sites)))
    times = time_tasks(works, machine)
    chain = find_critical_chain(works, times)
    assert times.starts[chain[0]] == 0
    assert times.ends[chain[-1]] == times.predicted_ms
    for before, after in itertools.pairwise(chain):
        assert times.ends[before] == times.starts[after]
        assert before in works[after].after or works[before].site == works[after].site
