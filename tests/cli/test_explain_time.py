"""`einc explain` on time: the prediction from the plan alone, where it goes, and the trace file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from einc.machines.load import parse_machine
from einc.machines.model import MS_PER_US
from einc.plan_reading.timing import read_plan_machine, time_plan
from einc.report.tables import format_ms
from einc_runtime.execution.trace import task_kind
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle, KernelTask, TransferTask
from tests.support.trace_format import check_trace, names

FFN = (
    "model ffn\ndim tokens=64\ndim d=24\ndim f=48\ninput x: f16[tokens,d]\nweight w1: f16[d,f]\nweight w2: f16[f,d]\n"
    "h = relu(matmul(x, w1))\ny = x + matmul(h, w2)\noutput y\n"
)


@pytest.fixture
def plan(einc: Callable[..., Any], tmp_path: Path) -> Path:
    (tmp_path / "ffn.ein").write_text(FFN)
    target = tmp_path / "ffn.bin"
    options = ("-m", "dgx-v100", "--selector", "random", "--seed", 3, "--schedule", "naive")
    assert einc("compile", tmp_path / "ffn.ein", *options, "-o", target).code == 0
    return target


def test_every_millisecond_has_an_owner(plan: Path, einc: Callable[..., Any]) -> None:
    for options in ((), ("--ideal",)):
        document = einc("explain", plan, "--json", *options).json()
        parts = [part["time"] for part in (*document["ops"], *document["outputs"])]
        predicted, total = document["predicted_ms"], document["time"]
        assert sum(part["critical_ms"] for part in parts) == pytest.approx(predicted)
        assert sum(total["critical"].values()) == pytest.approx(predicted)
        busy = sum(part["compute_ms"] + part["combine_ms"] for part in parts)
        assert busy == pytest.approx(sum(total["site_ms"]) / 8)
        waiting = sum(part["waiting_ms"] for part in parts)
        assert busy + waiting + total["tail_ms"] == pytest.approx(predicted)
        for part in parts:
            assert 0 <= part["start_ms"] <= part["end_ms"] <= predicted
        for link in total["links"]:
            assert 0 < link["full_ms"] <= link["busy_ms"] + 1e-12 <= predicted + 1e-12


def test_ideal_leaves_latencies_out(plan: Path, einc: Callable[..., Any]) -> None:
    real, ideal = (einc("explain", plan, "--json", *o).json()["predicted_ms"] for o in ((), ("--ideal",)))
    bundle = decode(plan.read_bytes())
    assert real == bundle.predicted_ms
    assert real - ideal > 3 * parse_machine(bundle.machine_file).kernel_latency_us * MS_PER_US


def test_one_operator_has_the_times_that_it_has_in_the_whole(plan: Path, einc: Callable[..., Any]) -> None:
    complete, single = (einc("explain", plan, "--json", *o).json() for o in ((), ("--op", "h")))
    assert single["ops"][0]["time"] == next(op["time"] for op in complete["ops"] if op["name"] == "h")
    assert single["predicted_ms"] == complete["predicted_ms"]


def test_the_terminal_says_where_the_time_goes(plan: Path, einc: Callable[..., Any]) -> None:
    document = einc("explain", plan, "--json").json()
    text = einc("explain", plan).out
    lines = text.splitlines()
    assert f": {format_ms(document['predicted_ms'])}" in lines[0]
    limit = document["limit"]
    assert lines[1].startswith(f"limited by {limit['by']}, {limit['part']:.0%} of the time")
    assert 0 < limit["peak_flops_part"] < 1
    assert 0 < limit["peak_memory_part"] < 1
    assert lines[2].startswith("to try: ")
    table = lines[lines.index(next(line for line in lines if line.startswith("time in ms"))) :]
    shown = {line.split("  ")[0].strip(): line for line in table[1 : table.index("")]}
    assert set(shown) >= {op["name"] for op in document["ops"]} | {"idle at the end"}
    slowest = max(document["ops"], key=lambda op: op["time"]["critical_ms"])
    assert f"{slowest['time']['critical_ms']:.3f}" in shown[slowest["name"]]
    busiest = max(document["time"]["links"], key=lambda link: link["full_ms"])
    assert table[table.index("busiest links") + 1].strip().startswith(busiest["name"])
    detail = einc("explain", plan, "--op", "h").out
    (entry,) = (op for op in document["ops"] if op["name"] == "h")
    assert f"critical {entry['time']['critical_ms']:.3f}" in detail


def test_two_plans_are_compared_by_time_too(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    second = tmp_path / "other.bin"
    assert einc("compile", tmp_path / "ffn.ein", "-m", "dgx-h100", "--schedule", "naive", "-o", second).code == 0
    both = einc("explain", plan, "--against", second, "--json").json()
    text = einc("explain", plan, "--against", second).out
    (row,) = (line for line in text.splitlines() if line.startswith("predicted ms"))
    assert f"{both['predicted_ms']:.3f}" in row
    assert f"{both['against']['predicted_ms']:.3f}" in row


def test_the_trace_is_the_predicted_timeline(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    shown = einc("explain", plan, "--trace", target)
    assert shown.code == 0
    assert "predicted" in shown.out
    text = target.read_text()
    bars, bundle = check_trace(text), decode(plan.read_bytes())
    times = time_plan(bundle, read_plan_machine(bundle)).times
    titles, tracks = names(text, "process_name"), names(text)
    assert set(titles.values()) == {f"site {site} (predicted: ffn)" for site in range(8)}
    seen: dict[int, set[str]] = {}
    for lane_name, lane in bars.items():
        for bar in lane:
            task = bar["args"]["task"]
            seen.setdefault(task, set()).add(f"{titles[lane_name[0], 0].split(' (')[0]} {tracks[lane_name].split()[0]}")
            assert bar["ts"] == pytest.approx(times.starts[task] * 1e3, abs=1e-3)
            assert bar["ts"] + bar["dur"] == pytest.approx(times.ends[task] * 1e3, abs=1e-3)
            assert bar["cat"] == task_kind(bundle.tasks[task])
    for number, task in enumerate(bundle.tasks):
        if isinstance(task, TransferTask):
            target_site = bundle.buffers[task.write.buffer].site
            assert seen[number] == {f"site {task.site} out", f"site {target_site} in"}
        elif task_kind(task) != "fence":
            assert seen[number] == {f"site {task.site} compute"}
    kernels = [
        lane_name
        for lane_name, lane in bars.items()
        if any(isinstance(bundle.tasks[b["args"]["task"]], KernelTask) for b in lane)
    ]
    assert len(kernels) == len({process for process, _ in kernels}), "kernels of a site run one at a time"
    again = tmp_path / "again.json"
    assert einc("explain", plan, "--trace", again).code == 0
    assert again.read_bytes() == target.read_bytes()


def test_a_trace_to_standard_output_stands_alone(plan: Path, einc: Callable[..., Any]) -> None:
    shown = einc("explain", plan, "--trace", "-")
    assert shown.code == 0
    check_trace(shown.out)
    assert einc("explain", plan, "--trace", "-", "--json").code == 2


def test_a_trace_that_cannot_be_written_is_refused_at_once(plan: Path, einc: Callable[..., Any]) -> None:
    assert einc("explain", plan, "--trace", "missing/t.json").code == 73


def test_a_trace_of_a_model_is_that_of_its_plan(plan: Path, einc: Callable[..., Any], tmp_path: Path) -> None:
    options = ("-m", "dgx-v100", "--selector", "random", "--seed", 3, "--schedule", "naive")
    assert einc("explain", tmp_path / "ffn.ein", *options, "--trace", tmp_path / "m.json").code == 0
    assert einc("explain", plan, "--trace", tmp_path / "p.json").code == 0
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "p.json").read_bytes()


def test_a_plan_whose_machine_does_not_fit_gets_one_error(plan: Path, einc: Callable[..., Any]) -> None:
    bundle = decode(plan.read_bytes())
    small = parse_machine(bundle.machine_file).restrict((0, 1, 2))
    from einc.machines.load import format_machine

    changed: Bundle = msgspec.structs.replace(bundle, machine_file=format_machine(small))
    plan.write_bytes(encode(changed))
    shown = einc("explain", plan)
    assert shown.code == 65
    assert len(shown.err.splitlines()) <= 2


def test_a_plan_too_large_to_be_timed_is_explained_without_times(
    plan: Path, einc: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einc.plan_reading.timing.MAX_EFFORT", 10)
    document = einc("explain", plan, "--json").json()
    assert document["time"] is None
    assert {op["time"] for op in document["ops"]} == {None}
    assert document["predicted_ms"] == decode(plan.read_bytes()).predicted_ms
    assert einc("explain", plan, "--json", "--ideal").json()["predicted_ms"] is None
    for options in ((), ("--op", "h"), ("--ideal",), ("--against", plan, "--ideal")):
        shown = einc("explain", plan, *options)
        assert shown.code == 0
        assert "time in ms" not in shown.out
    assert "too large to be timed" in einc("explain", plan).out
    refused = einc("explain", plan, "--trace", plan.parent / "t.json")
    assert refused.code == 65
    assert not (plan.parent / "t.json").exists()
