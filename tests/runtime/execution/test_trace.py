"""The trace format: Chrome and Perfetto can read it for any events, and equal events give equal bytes."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.execution.trace import WORKERS, TaskRun, TraceEvent, format_trace, make_task_events, task_kind
from einc_runtime.plan.schema import FenceTask, TransferTask
from tests.support.handmade_plans import random_plan
from tests.support.trace_format import check_trace, names

EVENTS = st.lists(
    st.builds(
        lambda site, track, start, length, name: TraceEvent(site, track, name, start, start + length),
        st.integers(WORKERS, 3),
        st.sampled_from(["compute", "out", "in", "worker 2", "worker 10"]),
        st.floats(0, 1e4),
        st.one_of(st.just(0.0), st.floats(0, 50)),
        st.text(min_size=1, max_size=5),
    ),
    max_size=40,
)


@given(EVENTS, st.sampled_from(["predicted", "measured"]))
def test_any_events_make_a_readable_trace(events, source):
    text = format_trace(events, source, "model")
    bars = check_trace(text)
    drawn = sorted((round(bar["ts"] * 1e3), bar["name"]) for lane in bars.values() for bar in lane)
    assert drawn == sorted((round(event.start_ms * 1e6), event.name) for event in events)
    assert format_trace(list(events), source, "model") == text


@given(EVENTS)
def test_a_track_has_no_more_lanes_than_events_that_overlap(events):
    text = format_trace(events, "measured", "model")
    lanes = check_trace(text)
    labels = names(text)
    for site in {event.site for event in events}:
        for track in {event.track for event in events if event.site == site}:
            own = [event for event in events if (event.site, event.track) == (site, track)]
            spans = [(round(e.start_ms * 1e6), round(e.end_ms * 1e6)) for e in own]
            most = max(sum(start <= at < end or at == start for start, end in spans) for at, _ in spans)
            used = [place for place in lanes if place[0] == 10 * (site + 1) + 2 and _track(labels[place]) == track]
            assert len(used) <= most


def _track(label):
    base, _, number = label.rpartition(" ")
    return base if base and number.isdigit() and base != "worker" else label


def test_predicted_and_measured_stand_side_by_side():
    events = [TraceEvent(0, "compute", "a", 0.0, 1.0), TraceEvent(1, "compute", "b", 0.5, 1.0)]
    predicted, measured = (format_trace(events, source, "ffn") for source in ("predicted", "measured"))
    assert not set(check_trace(predicted)) & set(check_trace(measured))
    both = {
        "displayTimeUnit": "ms",
        "traceEvents": [r for t in (predicted, measured) for r in json.loads(t)["traceEvents"]],
    }
    check_trace(json.dumps(both))
    assert names(predicted, "process_name")[11, 0] == "site 0 (predicted: ffn)"
    order = sorted(names(json.dumps(both), "process_name").items())
    assert [name.split(" (")[0] for _, name in order] == ["site 0", "site 0", "site 1", "site 1"]


def test_tasks_become_bars_named_by_tensor_and_block():
    bundle = random_plan(7, sites=4, operations=5)
    bundle = msgspec.structs.replace(bundle, tasks=(*bundle.tasks, FenceTask(0, "nothing", ())))
    runs = [TaskRun(number, number * 0.5, number * 0.5 + 0.75, number % 3) for number in range(len(bundle.tasks))]
    text = format_trace(make_task_events(bundle, runs), "measured", bundle.model)
    bars = check_trace(text)
    labels = names(text)
    drawn = {}
    for place, lane in bars.items():
        for bar in lane:
            drawn.setdefault(bar["args"]["task"], []).append((place[0] // 10 - 1, labels[place].split(" ")[0], bar))
    assert any(isinstance(task, TransferTask) for task in bundle.tasks)
    for number, task in enumerate(bundle.tasks):
        if task_kind(task) == "fence":
            assert number not in drawn
            continue
        places = {(site, track) for site, track, _ in drawn[number]}
        if isinstance(task, TransferTask):
            target = bundle.buffers[task.write.buffer].site
            assert places == {(task.site, "out"), (target, "in"), (WORKERS, "worker")}
            (bar,) = (bar for site, track, bar in drawn[number] if track == "out")
            assert (bar["args"]["from"], bar["args"]["to"]) == (task.site, target)
        else:
            assert places == {(task.site, "compute"), (WORKERS, "worker")}
        assert all(bar["ts"] == pytest.approx(number * 500) for _, _, bar in drawn[number])
    arrows = [record for record in json.loads(text)["traceEvents"] if record["ph"] == "s"]
    assert len(arrows) == sum(isinstance(task, TransferTask) for task in bundle.tasks)
    sources = {record["id"]: record["pid"] // 10 - 1 for record in arrows}
    assert sources == {
        f"measured {n}": task.site for n, task in enumerate(bundle.tasks) if isinstance(task, TransferTask)
    }
