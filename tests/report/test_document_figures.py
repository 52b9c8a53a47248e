"""What `einc explain` says in numbers, against the same worked out from the bytes of the plan file alone."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from einc.compiler import compile_model
from einc.exchange.language.parser import parse
from einc.exchange.language.resolve import resolve
from einc.machines.load import parse_machine
from einc.machines.model import Machine
from einc.options import CompileOptions
from einc.predict.cores import list_run_tasks
from einc.predict.costs import TaskCost, TaskKind
from einc.report.document import explain
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.launches import find_launches
from einc_runtime.plan.work import Work
from tests.support import plan_figures as figures
from tests.support.exchange_oracle import brute_simulate
from tests.support.predict_oracle import oracle

NETWORK = """
model m
dim n = 96; dim m = 80; dim k = 56
input x : f32[n, m]
weight w : f32[m, k]
weight v : f32[k, m]
h = relu(matmul(x, w))
g = matmul(h, v) + x
s = softmax(g, "m")
t = sum(s * g, over="n")
output y = matmul(s, w)
output t
output h
"""

CASES = [
    ("dgx-a100", 3, "naive", "eindecomp"),
    ("dgx-a100", 4, "synthesized", "eindecomp"),
    ("dgx-v100", 4, "synthesized", "random"),
    ("host", 3, "naive", "random"),
    ("dgx-h100", 5, "naive", "greedy"),
    ("dgx-a100", 1, "synthesized", "eindecomp"),
]


@functools.cache
def plan_file(machine: str, sites: int, schedule: str, selector: str) -> bytes:
    options = CompileOptions(machine=machine, devices=sites, schedule=schedule, selector=selector, seed=5)
    return encode(compile_model(NETWORK, "m.ein", options).bundle)


@pytest.fixture(params=CASES, ids=["-".join(map(str, case)) for case in CASES])
def data(request: pytest.FixtureRequest) -> bytes:
    return plan_file(*request.param)


def works(plan: figures.Plan) -> list[TaskCost]:
    results = []
    for task in plan["tasks"]:
        site, after = task["site"], tuple(task["after"])
        if task["kind"] == "kernel":
            operation = plan["operations"][task["operation"]]
            function = operation["functions"][task["function"]]
            cost = TaskCost(
                TaskKind.KERNEL, site, after, function["traffic"], function["flops"], operation["precision"]
            )
            work = None if "work" not in function else msgspec.convert(function["work"], Work)
            results.append(cost._replace(work=work))
        elif task["kind"] == "transfer":
            target = plan["buffers"][task["write"][0]]["site"]
            results.append(
                TaskCost(TaskKind.TRANSFER, site, after, figures.region_bytes(plan, task["read"]), target=target)
            )
        elif task["kind"] == "fence":
            results.append(TaskCost(TaskKind.FENCE, site, after))
        else:
            touched = sum(figures.region_bytes(plan, region) for region in (*task["reads"], *task["writes"]))
            results.append(TaskCost(TaskKind.COMBINE, site, after, touched))
    return results


@pytest.mark.sampled(2)
def test_costs(data: bytes) -> None:
    plan, document = figures.read(data), explain(decode(data))
    for operation, told in zip(plan["operations"], document["ops"], strict=True):
        join, aggregation = figures.own_costs(plan, operation, operation["functions"])
        again = figures.repartition(plan, operation, operation["functions"], {})
        assert told["cost"] == {"repartition": again, "join": join, "aggregation": aggregation}
        used = {function["site"] for function in operation["functions"]}
        assert told["idle_sites"] == sorted(set(range(len(plan["devices"]))) - used)
    assert document["total_cost"] == figures.total(plan)
    assert not document["exact"] or document["total_cost"] <= document["cut_cost"]


def test_the_next_best_cut_is_the_best_of_all_others(data: bytes) -> None:
    plan, document = figures.read(data), explain(decode(data), all_specs=True)
    for n, told in enumerate(document["ops"]):
        more = []
        for candidate in told["candidates"]:
            count = len(candidate["inputs"][0])
            functions = [{side: [blocks[f] for blocks in candidate[side]] for side in ("inputs", "outputs")}
                         for f in range(count)]  # fmt: skip
            if candidate["intervals"] != told["intervals"]:
                more.append(figures.total(plan, {n: functions}) - document["total_cost"])
            else:
                assert functions == [{side: spec[side] for side in ("inputs", "outputs")} for spec in told["specs"]]
        assert (told["next_best"] or {"more": None})["more"] == min(more, default=None)


def test_bytes_moved_and_held(data: bytes) -> None:
    plan, document = figures.read(data), explain(decode(data))
    moved = figures.moved(plan)
    told = {(op["name"], False): op["moves"]["bytes"] for op in document["ops"]}
    told |= {(output["name"], True): output["moves"]["bytes"] for output in document["outputs"]}
    assert {label: count for label, count in told.items() if count} == dict(moved)
    assert document["memory_bytes"] == figures.memory(plan)
    carried = {link["name"]: link["bytes"] for link in document["time"]["links"]}
    for resource in parse_machine(plan["machine_file"], connected=False).resources:
        crossing = [w for w in works(plan) if w.kind is TaskKind.TRANSFER and (w.site, w.target) in resource.pairs]
        assert carried.get(resource.name, 0) == sum(w.size for w in crossing)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ideal", [False, True])
def test_predicted_time_with_and_without_latencies(data: bytes, ideal: bool) -> None:
    plan, document = figures.read(data), explain(decode(data), ideal=ideal)
    machine = machine_of(plan, ideal)
    run, bundle = list_run_tasks(decode(data), machine).costs, decode(data)
    joint = {n for launch in find_launches(bundle, bundle.tasks) for n in launch.tasks if machine.joins_launches}
    alone = [n for n in range(len(run)) if n not in joint]
    assert [run[n]._replace(task="") for n in alone] == [works(plan)[n]._replace(task="") for n in alone]
    starts, ends = oracle(run, machine)
    assert document["predicted_ms"] == pytest.approx(max(ends), rel=1e-9)
    if not ideal:
        assert plan["predicted_ms"] == document["predicted_ms"]
    time = document["time"]
    assert sum(time["critical"].values()) == pytest.approx(max(ends), rel=1e-6)
    busy = [0.0] * len(plan["devices"])
    for work, start, end in zip(run, starts, ends, strict=True):
        if work.kind in (TaskKind.KERNEL, TaskKind.COMBINE):
            busy[work.site] += end - start
    assert time["site_ms"] == pytest.approx(busy, rel=1e-9)
    parts = [part["time"] for part in (*document["ops"], *document["outputs"])]
    spent = sum(part["compute_ms"] + part["combine_ms"] + part["waiting_ms"] for part in parts)
    assert spent + time["tail_ms"] == pytest.approx(max(ends), rel=1e-9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ideal", [False, True])
def test_times_of_exchanges_with_and_without_latencies(data: bytes, ideal: bool) -> None:
    plan, document = figures.read(data), explain(decode(data), ideal=ideal)
    machine = machine_of(plan, ideal)
    for part in (*document["ops"], *document["outputs"]):
        told = part["exchange"]
        if told is None:
            continue
        _, _, ends = brute_simulate(resolve(parse(told["program"], "p"), machine), machine)
        assert told["completion_ms"] == pytest.approx(float(max(ends.values(), default=Fraction(0))), rel=1e-9)
        assert told["bound_ms"] <= told["completion_ms"] * (1 + 1e-9)
        assert told["bound_free_ms"] is None or told["bound_free_ms"] <= told["bound_ms"] * (1 + 1e-9)


def machine_of(plan: figures.Plan, ideal: bool) -> Machine:
    machine = parse_machine(plan["machine_file"], connected=False)
    if not ideal:
        return machine
    sites = tuple(dataclasses.replace(site, gpu=None) for site in machine.sites)
    peaks = tuple(
        dataclasses.replace(resource, gbs=resource.peak_gbs or resource.gbs) for resource in machine.resources
    )
    return Machine(machine.name, sites, peaks)


def test_the_cases_have_something_to_tell() -> None:
    documents: list[dict[str, Any]] = [explain(decode(plan_file(*case))) for case in CASES]
    costs = [op["cost"] for document in documents for op in document["ops"]]
    assert all(any(cost[part] for cost in costs) for part in ("repartition", "join", "aggregation"))
    assert any(output["moves"]["bytes"] for document in documents for output in document["outputs"])
    assert any(op["exchange"]["splits"] for d in documents for op in d["ops"] if op["exchange"])
