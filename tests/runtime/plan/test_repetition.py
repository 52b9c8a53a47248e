"""Plans that say a layer once are refused, with one error, where they are hostile."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan import repetition as rules
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.record import Repetition, Section
from einc_runtime.plan.schema import Bundle
from tests.support.layered_plans import fold_layers

replace = msgspec.structs.replace


def change(alter: Callable[[Repetition], Repetition]) -> bytes:
    said = fold_layers("llama", 3, 9, "synthesized")
    assert said.repetition is not None
    return encode(replace(said, repetition=alter(said.repetition)))


def shorten(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    """The last section without the last record of its last layer but one, where that is copied."""
    *earlier, last = sections
    starts = (*last.starts[:-2], last.starts[-2] - 1, last.starts[-1])
    return (*earlier, replace(last, starts=starts))


def turn(sections: tuple[Section, ...]) -> tuple[Section, ...]:
    return tuple(replace(section, backwards=True) for section in sections)


def find_fault(data: bytes, *, folded: bool = False) -> str:
    with pytest.raises(PlanFault) as caught:
        decode(data, folded=folded)
    return caught.value.render()


FAULTS: list[tuple[Callable[[Repetition], Repetition], str]] = [
    (lambda r: replace(r, copies=()), "repetition.copies: there is no copy"),
    (lambda r: replace(r, operations=()), "repetition.operations: there is no section"),
    (lambda r: replace(r, head=0), "0 of 6 layers first"),
    (lambda r: replace(r, head=1 << 62), "layers first"),
    (lambda r: replace(r, tasks=(Section((0, 1), False),)), "it has 1 layers, and others have 6"),
    (lambda r: replace(r, tasks=(*r.tasks, *r.tasks)), "do not follow each other"),
    (lambda r: replace(r, tasks=(Section((0, 1, 2, 3, 4, 5, 1 << 62), False),)), "do not follow each other"),
    (lambda r: replace(r, tasks=(Section((-7, *r.tasks[0].starts[1:]), False),)), "do not follow each other"),
    (lambda r: replace(r, operations=turn(r.operations)), "repetition"),
    (lambda r: replace(r, copies=(r.copies[0], *r.copies[:-1])), "occurs here twice"),
    (lambda r: replace(r, copies=(replace(r.copies[0], tensors=("a",)),)), "repetition.copies[0]"),
    (lambda r: replace(r, copies=(replace(r.copies[0], operations=()),)), "repetition.copies[0]"),
    (
        lambda r: replace(r, copies=(replace(r.copies[0], sources=("\x1b",) * len(r.copies[0].sources)),)),
        "printable",
    ),
    (lambda r: replace(r, buffers=shorten(r.buffers)), "unlike numbers of records"),
    (lambda r: replace(r, operations=shorten(r.operations)), "unlike numbers of records"),
    (lambda r: replace(r, tasks=shorten(r.tasks)), "unlike numbers of records"),
]


@pytest.mark.parametrize(("alter", "message"), FAULTS)
def test_false_repetitions_are_refused(alter: Callable[[Repetition], Repetition], message: str) -> None:
    assert message in find_fault(change(alter))


@pytest.mark.parametrize("limit", ["tasks", "buffers", "operations"])
def test_copies_are_counted_before_they_are_made(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = change(lambda r: r)
    said = decode(data, folded=True)
    monkeypatch.setitem(rules.MAX_COUNTS, limit, len(getattr(said, limit)))
    monkeypatch.setattr(rules, "repeat", lambda *_: pytest.fail("copies were made"))
    assert f"repetition.{limit}, with all copies" in find_fault(data)


def test_regions_of_copies_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_COPIED_PARTS", 100)
    assert "regions and dependencies of all copies" in find_fault(change(lambda r: r))


def test_what_is_read_as_it_is_said_is_checked_too() -> None:
    assert "there is no copy" in find_fault(change(FAULTS[0][0]), folded=True)
    said: Bundle = fold_layers("llama", 3, 9, "synthesized")
    assert "total_cost" in find_fault(encode(replace(said, total_cost=said.total_cost + 1)), folded=True)
