"""The fewest events: compared with a brute force over random task graphs."""

from __future__ import annotations

import random

import pytest

from einc_runtime.execution.cuda.events import START, EventSchedule, schedule_events
from einc_runtime.execution.cuda.streams import StreamSpec, StreamStep


def random_steps(rng):
    streams = [StreamSpec(rng.randrange(2), str(n)) for n in range(rng.randint(1, 5))]
    steps = []
    for number in range(rng.randint(0, 24)):
        after = rng.sample(range(number), min(number, rng.choice([0, 1, 1, 2, 3, 5])))
        stream = None if rng.random() < 0.15 else rng.randrange(len(streams))
        steps.append(StreamStep(stream, tuple(sorted(after))))
    return streams, steps


def wanted_edges(streams, steps):
    """All that must hold, among steps that do something, START and the END of the origin; and what streams give."""
    end = len(steps)
    means = []  # what waiting for a step means, in steps that do something
    for number, step in enumerate(steps):
        through = set().union(*(means[p] for p in step.after)) if step.after else set()
        means.append({number} if step.stream is not None else through)
    asked = {(p, n) for n, step in enumerate(steps) if step.stream is not None for e in step.after for p in means[e]}
    given, last = set(), {0: START}
    for number, step in enumerate(steps):
        if step.stream is None:
            continue
        if step.stream in last:
            given.add((last[step.stream], number))
        else:
            asked.add((START, number))
        last[step.stream] = number
    given.add((last[0], end))
    asked |= {(number, end) for stream, number in last.items() if stream}
    return asked - given, given, end


def reduction(edges):
    """The edges that no other path replaces (the graph has no cycles)."""
    followers: dict[int, set[int]] = {}
    for a, b in edges:
        followers.setdefault(a, set()).add(b)

    def leads(a, b):
        pending, seen = [x for x in followers.get(a, ()) if x != b], set()
        while pending:
            x = pending.pop()
            if x == b:
                return True
            if x not in seen:
                seen.add(x)
                pending += followers.get(x, ())
        return False

    return {(a, b) for a, b in edges if not leads(a, b)}


def found_edges(order: EventSchedule, end):
    edges = {(earlier, number) for number, waits in enumerate(order.waits) for earlier in waits}
    return edges | {(earlier, end) for earlier in order.last_waits}


def test_waits_are_the_transitive_reduction():
    for seed in range(500):
        streams, steps = random_steps(random.Random(seed))
        order = schedule_events(steps, streams)
        asked, given, end = wanted_edges(streams, steps)
        assert found_edges(order, end) == reduction(asked | given) - given, seed
        assert order.edges == len(found_edges(order, end))
        assert all(list(waits) == sorted(set(waits), reverse=True) for waits in order.waits)


@pytest.mark.parametrize("seed", range(1000, 1300, 3))
def test_events_stand_for_what_is_waited_for_when_it_is_waited_for(seed):
    streams, steps = random_steps(random.Random(seed))
    order = schedule_events(steps, streams)
    stands: dict[int, int] = {}

    def record(event, step, stream):
        assert order.event_devices[event] == streams[stream].device
        stands[event] = step

    def check(step):
        event = order.start_event if step == START else order.event_of[step]
        assert stands[event] == step

    if order.start_event is not None:
        record(order.start_event, START, 0)
    for number, step in enumerate(steps):
        for earlier in order.waits[number]:
            check(earlier)
        if order.event_of[number] is not None:
            record(order.event_of[number], number, step.stream)
    for earlier in order.last_waits:
        check(earlier)
    waited = {e for waits in (*order.waits, order.last_waits) for e in waits}
    assert {n for n, event in enumerate(order.event_of) if event is not None} == waited - {START}
    assert (order.start_event is not None) == (START in waited)
    assert len(set(order.event_of) - {None}) <= len(order.event_devices) <= len(waited)


def test_a_long_pipeline_uses_few_events_again():
    streams = [StreamSpec(0, "a"), StreamSpec(1, "b")]
    steps = [StreamStep(n % 2, (n - 1,) if n else ()) for n in range(1000)]
    order = schedule_events(steps, streams)
    assert order.edges == 1000  # one per step but the first, and one for the end, which is on the other stream
    assert len(order.event_devices) <= 4


def test_one_stream_needs_no_event():
    order = schedule_events([StreamStep(0, tuple(range(n))) for n in range(20)], [StreamSpec(0, "a")])
    assert order.edges == 0
    assert order.event_devices == ()
