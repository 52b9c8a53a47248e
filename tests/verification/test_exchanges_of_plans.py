"""The exchanges of a plan: their programs are valid and do what the tasks do, and no time or bound is false."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from einc.verification import exchanges
from einc.verification.figures import verify_figures
from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode
from einc_runtime.plan.schema import AggregateTask, Bundle, Exchange
from tests.mutation.plans import make_plan

replace = msgspec.structs.replace

UNTIMED: dict[str, Any] = {
    "naive": False, "completion_ms": None, "naive_ms": None, "bound_ms": None, "bound_free_ms": None, "bound_by": None,
}  # fmt: skip
"""The fields of an exchange of which nothing but the program is stated."""


def once() -> Bundle:
    """A plan whose operation `y` gets X1 from site 0 to sites 0 and 2, and X2 from site 1 to sites 1 and 3."""
    return decode(make_plan("once"))


def change(bundle: Bundle, old: str = "", new: str = "", **fields: Any) -> Bundle:
    """The plan with another text and other fields in the exchange of `y`."""
    operations = list(bundle.operations)
    at = next(k for k, operation in enumerate(operations) if operation.name == "y")
    exchange = operations[at].exchange
    assert exchange is not None
    assert old in exchange.program
    text = exchange.program.replace(old, new) if old else exchange.program
    operations[at] = replace(operations[at], exchange=replace(exchange, program=text, **fields))
    return replace(bundle, operations=tuple(operations))


FALSE: dict[str, tuple[Callable[[Bundle], Bundle], str, str]] = {
    "no program": (lambda b: change(b, "IN:", "INTO:"), "('y').exchange.program", "unexpected ':'"),
    "other blanks": (
        lambda b: change(b, " @ ", "  @ "), "('y').exchange.program", "it is not written as the compiler writes"),
    "pieces of a whole atom": (
        lambda b: change(b, splits={"X1": 2}), "('y').exchange.splits", "they are not the pieces of the program"),
    "second pieces alone": (
        lambda b: change(b, "X1", "X1.2", splits={"X1": 2}), "('y').exchange",
        "the program has a piece of X1, and not its first piece"),
    "pieces without numbers": (
        lambda b: change(b, "X1", "X1.b", splits={"X1": 2}), "('y').exchange.splits",
        "the splits do not fit the program"),
    "no time of its own": (
        lambda b: change(b, completion_ms=None), "('y').exchange.completion_ms", "there is no time beside the others"),
    "a faster naive exchange": (
        lambda b: change(b, naive=False, naive_ms=0.001), "('y').exchange.naive_ms",
        "the program is slower than the naive one"),
    "a message that no task sends": (
        lambda b: change(b, "X1 @ 0 -> 2", "X1 @ 0 -> 1, 2", **UNTIMED), "('y').exchange.program",
        "the program sends 80 bytes from site 0 to site 1, and the tasks send 0"),
    "no exchange where tasks send": (
        lambda b: replace(b, operations=(replace(b.operations[0], exchange=None), *b.operations[1:])),
        "('h.1').exchange.program", "the program sends 0 bytes from site 0 to site 1, and the tasks send 60"),
}  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FALSE))
def test_false_exchanges_are_refused(fault: str) -> None:
    lie, where, message = FALSE[fault]
    with pytest.raises(PlanFault) as caught:
        verify_figures(lie(once()))
    assert caught.value.message.startswith(message)
    assert str(caught.value.where).endswith(where)


def test_programs_combine_what_tasks_combine() -> None:
    """The output adds Y1 to X1 at site 0: a task that takes one of both alone adds nothing."""
    bundle = once()
    at, task = next((k, task) for k, task in enumerate(bundle.tasks) if isinstance(task, AggregateTask))
    assert (task.site, len(task.reads), len(task.writes)) == (0, 2, 1)
    tasks = (*bundle.tasks[:at], replace(task, reads=task.reads[:1]), *bundle.tasks[at + 1 :])
    with pytest.raises(PlanFault, match="combines 60 bytes at site 0, and the tasks combine 0") as caught:
        verify_figures(replace(bundle, tasks=tasks))
    assert caught.value.where == "outputs[0] ('y').exchange.program"


def test_exchanges_need_no_times() -> None:
    verify_figures(change(once(), **UNTIMED))


def test_a_bound_for_any_sites_may_be_lower_than_that_for_these() -> None:
    """And says so: which sites were thought of cannot be known from the plan."""
    remarks = verify_figures(change(once(), bound_ms=0.004, bound_free_ms=0.004, bound_by="cut {2}: for other sites"))
    assert any("bound_free_ms" in remark for remark in remarks)
    with pytest.raises(PlanFault, match=r"0\.004 ms, and it should be 0\.00400106"):
        verify_figures(change(once(), bound_ms=0.004, bound_free_ms=None))


def test_equal_exchanges_are_each_compared_with_their_own_tasks() -> None:
    """The exchanges of the maximum and of the sum of a softmax are equal: the second is not accepted for the first."""
    bundle = decode(make_plan("softmax-width"))
    exchanges: list[tuple[str, Exchange]] = [
        (operation.name, operation.exchange) for operation in bundle.operations if operation.exchange
    ]
    (_, first), (name, second) = exchanges
    assert first == second
    verify_figures(bundle)
    at = max(k for k, task in enumerate(bundle.tasks) if isinstance(task, AggregateTask))
    tasks = list(bundle.tasks)
    tasks[at] = replace(tasks[at], reads=tasks[at].reads[:1], writes=tasks[at].writes[:1])  # type: ignore[union-attr]
    with pytest.raises(PlanFault, match="and the tasks combine") as caught:
        verify_figures(replace(bundle, tasks=tuple(tasks)))
    assert f"'{name}'" in str(caught.value.where)


def test_large_exchanges_keep_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told, and their programs are still compared with the tasks."""
    bundle = once()
    false = change(bundle, completion_ms=9.0)
    with pytest.raises(PlanFault, match=r"9\.0 ms"):
        verify_figures(false)
    monkeypatch.setattr(exchanges, "MAX_TIMED_ACTIONS", 5)  # h.1 has 4 actions, y has 2, and the output has 4
    remarks = verify_figures(false)
    assert "the times and bounds of 2 exchanges, which are too large to be simulated here" in remarks
    with pytest.raises(PlanFault, match="the program is not valid"):
        verify_figures(change(bundle, "X1 @ 0 -> 2\n", ""))
