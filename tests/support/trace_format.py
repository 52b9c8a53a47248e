"""What a trace-event file must be for Chrome and Perfetto to read it: a checker of its own, from the format's rules."""

import itertools
import json
from collections import defaultdict

PHASES = {"X", "M", "s", "f"}
SLACK = 1e-6  # microseconds: a thousandth of the resolution of the file, for sums of floats


def check_trace(text):
    """The bars of a trace by (pid, tid), after everything that the format asks of it has been asserted."""
    document = json.loads(text)
    assert document["displayTimeUnit"] in ("ms", "ns")
    records = document["traceEvents"]
    named = set()
    bars = defaultdict(list)
    arrows = defaultdict(dict)
    for record in records:
        assert record["ph"] in PHASES
        assert isinstance(record["name"], str)
        assert record["name"]
        assert type(record["pid"]) is int
        assert type(record["tid"]) is int
        lane_key = (record["pid"], record["tid"])
        if record["ph"] == "M":
            key = (record["name"], *lane_key)
            assert key not in named, f"{key} twice"
            named.add(key)
            value = record["args"]["sort_index" if record["name"].endswith("sort_index") else "name"]
            assert isinstance(value, int if record["name"].endswith("sort_index") else str)
            continue
        assert isinstance(record["cat"], str)
        assert type(record["ts"]) in (int, float)
        assert record["ts"] >= 0
        if record["ph"] == "X":
            assert type(record["dur"]) in (int, float)
            assert record["dur"] >= 0
            assert isinstance(record["args"], dict)
            bars[lane_key].append(record)
        else:
            ends = arrows[record["cat"], record["name"], record["id"]]
            assert record["ph"] not in ends, "an arrow begins or ends twice"
            ends[record["ph"]] = record
            if record["ph"] == "f":
                assert record["bp"] == "e"
    for lane_key, lane in bars.items():
        assert ("thread_name", *lane_key) in named
        assert ("process_name", lane_key[0], 0) in named
        lane.sort(key=lambda record: (record["ts"], record["dur"]))
        for bar, following in itertools.pairwise(lane):
            assert bar["ts"] + bar["dur"] <= following["ts"] + SLACK, f"{bar['name']} and {following['name']} overlap"
    for ends in arrows.values():
        assert set(ends) == {"s", "f"}
        assert ends["s"]["ts"] <= ends["f"]["ts"] + SLACK
        for end in ends.values():
            assert any(
                bar["ts"] - SLACK <= end["ts"] <= bar["ts"] + bar["dur"] + SLACK for bar in bars[end["pid"], end["tid"]]
            ), "an arrow without a bar"
    return dict(bars)


def names(text, kind="thread_name"):
    """The names of processes or threads by (pid, tid)."""
    return {
        (record["pid"], record["tid"]): record["args"]["name"]
        for record in json.loads(text)["traceEvents"]
        if record["ph"] == "M" and record["name"] == kind
    }
