"""What the pictures of the page are drawn from, against the plan's own records and the document of `einc explain`."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

from einc.compiler import compile_model
from einc.exchange.language.program import list_targets
from einc.exchange.language.resolve import read_program
from einc.options import CompileOptions
from einc.plan_reading.timing import Timing, read_plan_machine, time_plan
from einc.report.document import explain
from einc.report.html.measured import describe_trace
from einc.report.html.memory import INPUT, WEIGHT, describe_memory
from einc.report.html.programs import describe_programs
from einc.report.html.tasks import COMBINE, KERNEL, NS_PER_MS, TRANSFER, describe_idle_time, describe_tasks
from einc_runtime.errors import PlanFault
from einc_runtime.execution.trace import TaskRun, format_trace, make_task_events
from einc_runtime.plan.schema import Bundle, FenceTask
from tests.support.layered_model import TEXT, compile_layers

OPTIONS = CompileOptions(machine="dgx-v100", devices=5, selector="eindecomp")
CASES = {
    "naive": compile_layers,
    "synthesized": lambda: compile_model(TEXT, "m.ein", OPTIONS),
    "host": lambda: compile_model(TEXT, "m.ein", CompileOptions(machine="host", devices=3, selector="eindecomp")),
}


@pytest.fixture(scope="module", params=CASES)
def bundle(request: pytest.FixtureRequest) -> Bundle:
    plan: Bundle = CASES[request.param]().bundle
    return plan


@pytest.fixture(scope="module")
def timing(bundle: Bundle) -> Timing:
    return time_plan(bundle, read_plan_machine(bundle))


@pytest.fixture(scope="module")
def document(bundle: Bundle) -> dict[str, Any]:
    return explain(bundle)


@pytest.mark.sampled(2)
def test_every_task_is_drawn_once(bundle: Bundle, timing: Timing, document: dict[str, Any]) -> None:
    tasks = describe_tasks(bundle, timing)
    assert tasks is not None
    times = timing.times
    assert times is not None
    starts = list(itertools.accumulate(tasks["start"]))
    drawn = sorted(zip(starts, tasks["length"], tasks["site"], strict=True))
    expected = sorted(
        (round(start * NS_PER_MS), round(end * NS_PER_MS) - round(start * NS_PER_MS), task.site)
        for task, start, end in zip(bundle.tasks, times.starts, times.ends, strict=True)
        if not isinstance(task, FenceTask)
    )
    assert drawn == expected
    assert tasks["end"] == round(document["predicted_ms"] * NS_PER_MS)
    for at, cause in enumerate(tasks["cause"]):  # what a task waits for has ended when it starts
        assert not cause or starts[at - cause] + tasks["length"][at - cause] <= starts[at] + 1
    moved: dict[str, int] = defaultdict(int)
    for kind, label, size, site, target in zip(
        *(tasks[name] for name in ("kind", "label", "bytes", "site", "target")), strict=True
    ):
        assert (kind == TRANSFER) == (target >= 0)
        assert site != target
        name, is_output = tasks["labels"][label]
        moved[f"output {name}" if is_output else name] += size * (kind == TRANSFER)
    parts = [(op["name"], op) for op in document["ops"]]
    parts += [(f"output {output['name']}", output) for output in document["outputs"]]
    assert {name: size for name, size in moved.items() if size} == {
        name: part["moves"]["bytes"] for name, part in parts if part["moves"]["bytes"]
    }


def test_critical_tasks_follow_each_other_without_a_gap(bundle: Bundle, timing: Timing) -> None:
    tasks = describe_tasks(bundle, timing)
    assert tasks is not None
    if read_plan_machine(bundle).cores is not None:
        return  # tasks of a plan are there in parts
    starts = list(itertools.accumulate(tasks["start"]))
    chain = sorted((starts[n], starts[n] + tasks["length"][n]) for n in tasks["critical"])
    assert chain[0][0] == 0
    assert chain[-1][1] == tasks["end"]
    assert all(abs(a[1] - b[0]) <= 1 for a, b in itertools.pairwise(chain))


def test_the_parts_of_a_sites_time_add_up(bundle: Bundle, timing: Timing, document: dict[str, Any]) -> None:
    machine = read_plan_machine(bundle)
    rows = describe_idle_time(bundle, timing, machine)
    if machine.cores is not None:
        assert rows is None
        return
    assert rows is not None
    for row, busy in zip(rows, document["time"]["site_ms"], strict=True):
        assert sum(row.values()) == pytest.approx(document["predicted_ms"])
        assert row["kernel_ms"] + row["combine_ms"] == pytest.approx(busy)
        assert min(row.values()) >= -1e-12
    assert any(row["waits_transfer_ms"] > 0 for row in rows)
    tasks = describe_tasks(bundle, timing)
    assert tasks is not None
    alone = sum(length for length, kind in zip(tasks["length"], tasks["kind"], strict=True) if kind == KERNEL)
    assert alone / NS_PER_MS == pytest.approx(sum(row["kernel_ms"] for row in rows), abs=1e-3)
    assert COMBINE in tasks["kind"]


def test_what_is_in_use_fits_into_the_arena(bundle: Bundle, timing: Timing, document: dict[str, Any]) -> None:
    columns = describe_memory(bundle, timing.times)
    assert columns is not None
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if read_plan_machine(bundle).cores is None:
        for site, arena in enumerate(bundle.memory):
            present = [row for row in rows if row["site"] == site and row["first"] < row["last"]]
            for moment in {row["first"] for row in present}:
                alive = [row for row in present if row["first"] <= moment < row["last"]]
                spans = sorted((row["offset"], row["offset"] + row["bytes"]) for row in alive)
                assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
                assert sum(row["bytes"] for row in alive) <= arena
    held = [sum(row["bytes"] for row in rows if (row["site"], row["kind"]) == (site, WEIGHT))
            for site in range(len(bundle.memory))]  # fmt: skip
    assert held == [
        sum(column) for column in zip(*(weight["site_bytes"] for weight in document["weights"]), strict=True)
    ]
    assert any(row["kind"] == INPUT for row in rows)


def test_programs_deliver_what_they_promise(bundle: Bundle, document: dict[str, Any]) -> None:
    machine = read_plan_machine(bundle)
    rows = describe_programs(document, machine)
    named = [name for row in rows for name in row["names"]]
    parts = [(op["name"], op) for op in document["ops"]]
    parts += [(f"output {output['name']}", output) for output in document["outputs"]]
    assert sorted(named) == sorted(name for name, part in parts if part["exchange"] is not None)
    for row in rows:
        drawn = row["drawn"]
        program = read_program(row["exchange"]["program"], "program", machine)
        names = [aggregate["name"] for aggregate in drawn["aggregates"]]
        drawn["copies"] += [[piece, target, end, "arrived"] for piece, _, target, _, end in drawn["flows"]]
        copies = {(names[piece], site) for piece, site, _, _ in drawn["copies"]}
        for requirement in program.requirements:
            assert {("+".join(requirement.aggregate), site) for site in list_targets(program, requirement)} <= copies
        assert drawn["completion_ms"] == pytest.approx(row["exchange"]["completion_ms"])
        assert max(end for *_, end in drawn["flows"]) <= drawn["completion_ms"]
        for piece, source, target, begin, end in drawn["flows"]:  # nobody sends what they have not
            had = [ms for p, site, ms, _ in drawn["copies"] if (p, site) == (piece, source)]
            assert min(had) <= begin < end
            assert (piece, target) in {(p, site) for p, site, *_ in drawn["copies"]}


def test_a_measured_trace_is_read_back(bundle: Bundle, timing: Timing) -> None:
    runs = [TaskRun(task, 0.5 * task, 0.5 * task + 0.25) for task in range(len(bundle.tasks))]
    text = format_trace(make_task_events(bundle, runs), "measured", bundle.model)
    columns = describe_trace(text.encode(), bundle, timing.times, "t.json")
    assert columns is not None
    drawn = [run for run in runs if not isinstance(bundle.tasks[run.task], FenceTask)]
    assert sorted(columns["start"]) == [round(run.start_ms * NS_PER_MS) for run in drawn]
    assert set(columns["length"]) == {round(0.25 * NS_PER_MS)}
    assert columns["end"] == max(round(run.end_ms * NS_PER_MS) for run in drawn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda event: event["args"].update(task=10**6), "has no task"),
        (lambda event: event["args"].update(serves="other"), "serves another operator"),
        (lambda event: event.update(ts=-1), "has no time"),
        (lambda event: event.update(dur="1"), "has no time"),
        (lambda event: event.pop("ts"), "has no time"),
        (lambda event: event.update(ts=1e300), "has no time"),
    ],
    ids=["task", "serves", "start", "text", "none", "huge"],
)
def test_a_trace_of_something_else_is_refused(change: Any, message: str) -> None:
    bundle = compile_layers().bundle
    timing = time_plan(bundle, read_plan_machine(bundle))
    runs = [TaskRun(0, 0.0, 1.0)]
    document = json.loads(format_trace(make_task_events(bundle, runs), "measured", "m"))
    change(next(event for event in document["traceEvents"] if event["ph"] == "X"))
    with pytest.raises(PlanFault, match=message):
        describe_trace(json.dumps(document).encode(), bundle, timing.times, "t.json")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"traceEvents": [1]}', b"\xff", b'{"traceEvents": NaN}', b"[" * 10**5]
)
def test_what_is_no_trace_is_refused(data: bytes) -> None:
    bundle = compile_layers().bundle
    with pytest.raises(PlanFault):
        describe_trace(data, bundle, time_plan(bundle, read_plan_machine(bundle)).times, "t.json")


def test_references_are_other_plans_of_the_model(document: dict[str, Any], bundle: Bundle) -> None:
    references = document["references"]
    ideal = bundle.machine != "host" and read_plan_machine(bundle).kernel_latency_us == 0
    options = CompileOptions(machine=bundle.machine, devices=1, selector="eindecomp", ideal=ideal)
    alone = compile_model(TEXT, "m.ein", options).bundle
    assert references["one_site_ms"] == pytest.approx(alone.predicted_ms)
    if bundle.schedule == "naive":
        assert references["naive_ms"] == pytest.approx(bundle.predicted_ms)
    for row in document["ops"]:
        best = row["next_best"]
        assert (best is None) == (row["other_cuts"] == [])
        assert best is None or best["more"] == row["other_cuts"][0]["more"]


def test_other_cuts_begin_with_the_next_fastest() -> None:
    options = CompileOptions(machine="dgx-v100", devices=2)
    document = explain(compile_model(TEXT, "m.ein", options).bundle)
    assert any(len(row["other_cuts"]) > 1 for row in document["ops"])
    for row in document["ops"]:
        assert next(iter(row["other_cuts"]), None) == row["next_fastest"]
        more = [cut["more_ms"] for cut in row["other_cuts"]]
        assert more == sorted(more)


def test_tasks_have_the_errors_of_their_kinds() -> None:
    plan = compile_model(TEXT, "m.ein", CompileOptions(machine="dgx-h100", devices=5, selector="eindecomp")).bundle
    machine = read_plan_machine(plan)
    gpu = machine.sites[0].gpu
    assert gpu is not None
    tasks = describe_tasks(plan, time_plan(plan, machine))
    assert tasks is not None
    products = {operation.name for operation in plan.operations if operation.kernel == "contract"}
    of_product = {round(100 * rates.error) for rates in gpu.products}
    assert 20 not in of_product
    for kind, label, error in zip(tasks["kind"], tasks["label"], tasks["error"], strict=True):
        name, is_output = tasks["labels"][label]
        if kind == KERNEL and name in products and not is_output:
            assert error in of_product
        else:
            assert error == 20
    assert {kind for kind, error in zip(tasks["kind"], tasks["error"], strict=True) if error == 20} >= {TRANSFER}


def test_tasks_have_no_errors_where_nothing_was_measured(bundle: Bundle, timing: Timing) -> None:
    tasks = describe_tasks(bundle, timing)
    assert tasks is not None
    assert tasks["error"] is None
