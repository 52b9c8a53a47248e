"""Sequences that start, are cancelled and end at any time in one batch: their tokens are those of runs alone."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from einc_runtime.errors import ArrayFault, KernelFault, ReportedError, UsageFault
from einc_runtime.execution.session import Session
from einc_runtime.generation.engine import BusyFault, ClosedFault, Engine, EngineCounts, Progress
from einc_runtime.generation.generator import Generator
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.sequence_batch import NewToken, SequenceBatch, SequenceRequest
from einc_runtime.generation.slots import DecoderSlots
from tests.support.generation_cases import DATA, PROMPTS, expected_tokens, make_sessions

NAME = "llama-scaled"
WAIT = 60
"""Seconds after which a test that waits for an event fails: far more than it takes."""

Engines = Engine[SequenceRequest, NewToken]


class Heard:
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[Any, bool]] = queue.SimpleQueue()

    def __call__(self, result: Any, is_last: bool) -> None:
        self._told.put((result, is_last))

    def next(self) -> tuple[Any, bool]:
        return self._told.get(timeout=WAIT)

    def all(self) -> list[Any]:
        found = [self.next()]
        while not found[-1][1]:
            found.append(self.next())
        assert self._told.empty()
        return [result for result, _ in found]


class Steps:
    """A batch that gives each request as many numbers as it asks for, one an advance; -1 fails, -2 fails for all.

    An advance waits until `allow` is set.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.running: dict[int, list[int]] = {}
        self.allow = threading.Semaphore(0)
        self.widths: list[int] = []

    def check(self, request: int) -> None:
        if request == 0:
            raise ArrayFault("nothing to do")

    def start(self, slot: int, request: int) -> bool:
        assert slot not in self.running
        if request > 90 and self.running:  # it needs all the room that there is
            return False
        self.running[slot] = [0, request]
        return True

    def end(self, slot: int) -> None:
        del self.running[slot]

    def advance(self) -> list[Progress[int]]:
        assert self.allow.acquire(timeout=WAIT)
        self.widths.append(len(self.running))
        found: list[Progress[int]] = []
        for slot, (done, asked) in list(self.running.items()):
            if asked == -2:
                raise ZeroDivisionError("a mistake")
            self.running[slot][0] += 1
            last = asked == -1 or done + 1 == asked
            found.append(Progress(slot, KernelFault("not finite") if asked == -1 else done, last))
            if last:
                self.end(slot)
        return found


@pytest.fixture
def steps() -> Steps:
    return Steps(2)


@pytest.fixture
def counting(steps: Steps) -> Any:
    engine = Engine[int, int](steps, 3)
    yield engine
    steps.allow.release(1000)
    engine.close()


def submit(engine: Engine[Any, Any], *requests: Any) -> tuple[list[Any], list[Heard]]:
    heard = [Heard() for _ in requests]
    return engine.submit(requests, heard), heard


def test_as_many_wait_as_may(counting: Engine[int, int], steps: Steps) -> None:
    with pytest.raises(UsageFault, match="6 are too many at once: at most 5 run and wait"):
        submit(counting, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ArrayFault, match="nothing to do"):
        submit(counting, 1, 0)
    assert counting.counts == EngineCounts()  # all of a submission, or nothing of it
    _, heard = submit(counting, 1, 2, 3, 1, 2)
    with pytest.raises(BusyFault, match="no 1 more may wait"):
        submit(counting, 1)
    steps.allow.release()
    assert heard[0].all() == [0]
    submit(counting, 1)  # there is a place again
    steps.allow.release(9)
    assert [one.all() for one in heard[1:]] == [[0, 1], [0, 1, 2], [0], [0, 1]]
    assert counting.wait(WAIT)
    counts = counting.counts
    assert (counts.submitted, counts.finished, counts.running, counts.waiting) == (6, 6, 0, 0)
    assert max(steps.widths) == 2


def test_a_cancelled_request_frees_its_slot_and_hears_no_more(counting: Engine[int, int], steps: Steps) -> None:
    jobs, heard = submit(counting, 1000, 1000, 2, 7)
    steps.allow.release()
    assert heard[0].next() == (0, False)
    counting.cancel(jobs[0])
    counting.cancel(jobs[3])  # which waits
    counting.cancel(jobs[3])
    steps.allow.release(3)
    assert heard[2].all() == [0, 1]
    counting.cancel(jobs[2])  # which has ended
    counting.cancel(jobs[1])
    steps.allow.release(1)
    assert counting.wait(WAIT)
    counts = counting.counts
    assert (counts.submitted, counts.finished, counts.failed, counts.cancelled) == (4, 1, 0, 3)
    assert steps.running == {}


def test_an_error_ends_those_that_it_concerns(counting: Engine[int, int], steps: Steps) -> None:
    steps.allow.release(100)
    _, (bad, good) = submit(counting, -1, 2)
    assert good.all() == [0, 1]
    assert str(bad.all()[0]) == "not finite"
    _, (worst, other) = submit(counting, -2, 5)
    assert [str(one.all()[-1]) for one in (worst, other)] == ["a bug in einc: ZeroDivisionError: a mistake"] * 2
    assert submit(counting, 2)[1][0].all() == [0, 1]  # and it goes on
    assert (counting.counts.failed, counting.counts.finished) == (3, 2)


def test_a_listener_that_fails_is_not_called_again(counting: Engine[int, int], steps: Steps) -> None:
    steps.allow.release(100)

    def fail(result: int | ReportedError, is_last: bool) -> None:
        raise RuntimeError("the loop is closed")

    counting.submit([50], [fail])
    assert counting.wait(WAIT)
    assert counting.counts.cancelled == 1


def test_an_engine_that_ends_finishes_what_it_has(counting: Engine[int, int], steps: Steps) -> None:
    _, heard = submit(counting, 2, 2, 2)
    counting.refuse()
    with pytest.raises(ClosedFault, match="no more requests"):
        submit(counting, 1)
    assert not counting.wait(0)
    steps.allow.release(4)
    assert [one.all() for one in heard] == [[0, 1]] * 3
    assert counting.wait(WAIT)


def test_what_is_left_when_an_engine_is_closed_is_told(steps: Steps) -> None:
    engine = Engine[int, int](steps, 3)
    _, heard = submit(engine, 10**9, 10**9, 1)
    steps.allow.release()
    heard[0].next()
    closing = threading.Thread(target=engine.close)
    closing.start()
    while closing.is_alive():
        steps.allow.release()
        closing.join(0.01)
    assert all(isinstance(one.all()[-1], ClosedFault) for one in heard)
    assert (engine.counts.failed, engine.counts.running, engine.counts.waiting) == (3, 0, 0)


def test_who_needs_much_room_waits_and_so_do_those_behind(steps: Steps) -> None:
    engine: Engines = Engine(steps, 9)
    (_, large, _), heard = submit(engine, 2, 91, 1)
    for _ in range(3):
        steps.allow.release()
    assert [heard[0].all(), heard[2].all()] == [[0, 1], [0]]
    assert heard[1].next() == (0, False)
    assert steps.widths == [1, 1, 2]  # the last one did not overtake the one that waited
    engine.cancel(large)
    steps.allow.release()
    engine.close()


# ---- over plans


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[Session]:
    """Three slots of 19 places, and prompts in pieces of 4 tokens."""
    return make_sessions(DATA / NAME, tmp_path_factory.mktemp("plans"), (3, 19, (4,)))


@pytest.fixture
def batch(sessions: list[Session]) -> SequenceBatch:
    return SequenceBatch(DecoderSlots(sessions[0], sessions[1:]))


def make_requests(count: int) -> list[SequenceRequest]:
    draw = random.Random(3)
    samplings = [GREEDY, *(Sampling(temperature, 0.9, seed) for temperature in (0.7, 1.3) for seed in range(2))]
    return [
        SequenceRequest(
            [draw.randrange(41) for _ in range(draw.randint(1, 12))], draw.randint(1, 7), draw.choice(samplings)
        )
        for _ in range(count)
    ]


def test_tokens_are_those_of_runs_alone(batch: SequenceBatch, sessions: list[Session]) -> None:
    """Eight threads, and every fourth request is cancelled after its first token, or before."""
    engine: Engines = Engine(batch, 1000)
    requests = [*make_requests(46), *(SequenceRequest(prompt, 10) for prompt in PROMPTS)]
    found: dict[int, list[int]] = {}

    def ask(numbers: Sequence[int]) -> None:
        for number in numbers:
            (job,), (heard,) = submit(engine, requests[number])
            if number % 4 == 3 and number < 46:
                if number % 8 == 3:
                    heard.next()
                engine.cancel(job)
            else:
                found[number] = [new.token for new in heard.all()]

    threads = [threading.Thread(target=ask, args=(range(first, 48, 8),)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert engine.wait(WAIT)
    counts = engine.counts
    engine.close()
    assert (counts.submitted, counts.failed, counts.running, counts.waiting) == (48, 0, 0, 0)
    assert counts.finished + counts.cancelled == 48
    assert len(found) == 48 - 11
    assert [found[46], found[47]] == expected_tokens(NAME)
    alone = Generator(sessions[0], sessions[1:])
    for number, tokens in found.items():
        one = requests[number]
        assert [tokens] == [row.tokens for row in alone.generate([one.tokens], one.max_tokens, one.sampling)], number


def test_a_long_prompt_delays_others_by_one_piece(batch: SequenceBatch) -> None:
    first, _ = expected_tokens(NAME)
    batch.start(2, SequenceRequest(PROMPTS[1], 10))
    assert [one.result.sequence for one in batch.advance() if isinstance(one.result, NewToken)] == [0, 0]
    batch.start(0, SequenceRequest((PROMPTS[0] + first)[:16], 3, number=1))
    widths = [len(batch.advance()) for _ in range(5)]
    assert widths == [1, 1, 1, 3, 2]  # four pieces; the last one gives a token, and all go on
    assert [one.slot for one in batch.advance()] == [2]
    assert not batch.is_reading
    batch.end(2)
    assert batch.advance() == []


def test_what_cannot_be_read_is_refused_before_it_starts(batch: SequenceBatch) -> None:
    for tokens in ([41], [-1], [3, 10**30]):
        with pytest.raises(ArrayFault, match="there are 41 tokens, and"):
            batch.check(SequenceRequest(tokens, 4))
    batch.check(SequenceRequest([40, 0], 4))
    batch.check(SequenceRequest([1] * 19, 4))
