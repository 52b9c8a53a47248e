"""Workers that die, lose the device or give no answer: what `make gpu-check` then does, and what it tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from time import perf_counter
from typing import ClassVar

import numpy as np
import pytest

from einc_runtime.environment import ATTENTION
from tests.gpu import benchmark, facts, output, places, processes, stages, worker
from tests.gpu.benchmark import Contender, measured
from tests.gpu.cases import BENCHMARKS, CASES
from tests.gpu.ceilings import Ceilings
from tests.gpu.correctness import arrays_of
from tests.gpu.findings import Findings
from tests.gpu.layouts import Layout
from tests.gpu.places import CPU, GPU, of
from tests.gpu.records import record, timing
from tests.gpu.report import page


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """After a worker was lost, the check tells later ones by this which libraries to avoid."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_a_worker_that_gives_no_answer_says_where_it_is(monkeypatch):
    script = (
        "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); print('{\"ready\": 1}', flush=True)"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess, "Popen",
        lambda command, **options: popen([sys.executable, "-c", f"{script}\ntime.sleep(99)"], **options),
    )  # fmt: skip
    worker = processes.Worker("correctness", "0")
    assert worker.record(30) == {"ready": 1}
    with pytest.raises(TimeoutError):
        worker.record(0.1)
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    code, complaint = worker.end()
    assert code == -signal.SIGKILL
    assert 'File "<string>", line 2 in <module>' in complaint
    assert processes.brief("a\n b\nc\nd\n  e") == "b / c / d / e"


class FakeWorker:
    """Dies at the positions in `deaths`, hangs at those in `hangs`."""

    deaths: frozenset = frozenset()
    hangs: frozenset = frozenset()
    started: ClassVar[list] = []

    def __init__(self, what, which):
        assert what == "correctness"
        type(self).started.append(int(which))
        self.records = self._records(int(which))

    def _records(self, first):
        for position in range(first, len(GPU.runs())):
            yield {"start": position}
            if position in self.deaths:
                return
            if position in self.hangs:
                raise TimeoutError
            yield {"position": position, **record(str(position))}

    def record(self, seconds):
        assert seconds > 0
        return next(self.records, None)

    def end(self):
        return 3, "CUDA error"


def nothing():
    pass


def test_a_lost_device_costs_one_case():
    class Dying(FakeWorker):
        deaths, hangs, started = frozenset({2, 3, len(GPU.runs()) - 1}), frozenset({5}), []

    findings, saved = Findings(), []
    stages.check_all(findings, GPU, perf_counter() + 1000, lambda: saved.append(len(findings.checks)), Dying)
    assert Dying.started == [0, 3, 4, 6]
    positions = [record["position"] for record in findings.checks]
    assert positions == [n for n in range(len(GPU.runs())) if n not in Dying.deaths | Dying.hangs]
    assert saved == list(range(1, len(positions) + 1))  # whatever was found is on the page at once
    assert len(findings.lost) == 4
    assert "exit code 3, CUDA error" in findings.lost[0]
    assert "no answer in time" in findings.lost[2]
    assert not findings.left


def test_a_second_check_goes_on_where_the_first_was_ended(tmp_path):
    class Ended(FakeWorker):
        started: ClassVar[list] = []

        def _records(self, first):
            for told in super()._records(first):
                if told.get("start") == 4:
                    raise KeyboardInterrupt
                yield told

    class Second(FakeWorker):
        started: ClassVar[list] = []

    file, where = tmp_path / "page.md", {"date": "today", "commit": "abc", "GPU, memory, driver": "a GPU"}
    findings = Findings(measured=3, own_attention="a case")
    with pytest.raises(KeyboardInterrupt):
        stages.check_all(findings, GPU, perf_counter() + 1000, lambda: output.write(file, findings, where, 1.0), Ended)
    second = output.read(file, {**where, "date": "tomorrow"})
    assert (second.checked, second.measured, second.own_attention) == (4, 3, "a case")
    stages.check_all(second, GPU, perf_counter() + 1000, nothing, Second)
    assert (Ended.started, Second.started) == ([0], [4])
    assert [record["position"] for record in second.checks] == list(range(len(GPU.runs())))
    assert output.read(file, {**where, "commit": "def"}) is None
    output.write(file, replace(second, finished=True, left=["a benchmark"]), where, 1.0)
    assert output.read(file, where).left == []
    output.write(file, replace(second, finished=True), where, 1.0)
    assert output.read(file, where) is None  # all of it is there
    file.with_suffix(".json").write_text('{"facts": 3}')
    assert output.read(file, where) is None


def test_benchmarks_that_are_over_are_not_measured_again(monkeypatch):
    findings, _ = benchmarked(monkeypatch, 1000, findings=Findings(measured=3))
    assert [found["name"] for found in findings.benchmarks] == [own.name for own in BENCHMARKS[3:]]
    assert findings.measured == len(BENCHMARKS)


@pytest.mark.parametrize("how", ["f16", "f32", "told"])
def test_libraries_for_attention_are_left_alone_after_one_may_have_taken_the_device(monkeypatch, how):
    monkeypatch.delenv(ATTENTION, raising=False)
    dtype = "f32" if how == "f32" else "f16"
    wanted = next(n for n, run in enumerate(GPU.runs())
                  if (run.case.name, run.case.dtype) == ("attention_cases", dtype))  # fmt: skip

    class Dying(FakeWorker):
        deaths, hangs, started = frozenset() if how == "told" else frozenset({wanted}), frozenset(), []

        def _records(self, first):
            for one in super()._records(first):
                if how == "told" and one.get("position") == wanted:
                    yield {**one, "problem": "an illegal address"}
                    return
                yield one

    findings = Findings()
    stages.check_all(findings, GPU, perf_counter() + 1000, nothing, Dying)
    assert Dying.started == [0, wanted + 1]
    assert os.environ.get(ATTENTION) == (None if how == "f32" else "einc")
    assert bool(findings.own_attention) == (how != "f32")
    assert ("without libraries for attention: attention_cases f16" in page(findings, {}, 1.0)) == (how != "f32")


def test_what_is_not_reached_in_time_is_told(monkeypatch):
    class Slow(FakeWorker):
        hangs, started = frozenset({3}), []

        def record(self, seconds):
            try:
                return super().record(1)
            except TimeoutError:
                now[0] += 100
                raise

    now = [0.0]
    monkeypatch.setattr(stages, "perf_counter", lambda: now[0])
    findings = Findings()
    stages.check_all(findings, GPU, 50.0, nothing, Slow)
    assert len(findings.checks) == 3
    assert not findings.lost
    assert len(findings.left) == len(GPU.runs()) - 3


class BenchmarkWorker:
    """Two records for each benchmark; every one takes 10 seconds. `ends` says how some of them go wrong."""

    def __init__(self, now, ends, what, first, seconds, *ceilings):
        assert what == "benchmarks"
        self.now, self.ends, self.records = now, ends, self._records(int(first))
        self.given = float(seconds)

    def _records(self, first):
        for position in range(first, len(BENCHMARKS)):
            name = BENCHMARKS[position].name
            yield {"start": position}
            for complete in (False, True):
                self.now[0] += 10
                if complete and name in self.ends:
                    if self.ends[name] == "hangs":
                        raise TimeoutError
                    return
                yield {**timing(name, ours=2.0 - complete), "position": position, "complete": complete}

    def record(self, seconds):
        assert seconds <= stages.BENCHMARK_LIMIT
        return next(self.records, None)

    def end(self):
        return 9, "out of memory"


def benchmarked(monkeypatch, deadline, findings=None, **ends):
    now, findings, saved = [0.0], findings or Findings(), []
    monkeypatch.setattr(stages, "perf_counter", lambda: now[0])

    def start(*arguments):
        return BenchmarkWorker(now, ends, *arguments)

    stages.benchmark_all(findings, deadline, lambda: saved.append(now[0]), start)
    return findings, saved


def test_all_benchmarks_are_run_and_the_last_record_of_each_counts(monkeypatch):
    findings, saved = benchmarked(monkeypatch, 1000)
    assert [found["name"] for found in findings.benchmarks] == [own.name for own in BENCHMARKS]
    assert all(found["complete"] and found["ms"]["einc"] == 1.0 for found in findings.benchmarks)
    assert len(saved) == 2 * len(BENCHMARKS)
    assert findings.passed


def test_of_a_benchmark_that_is_lost_there_is_what_it_had_found(monkeypatch):
    findings, _ = benchmarked(monkeypatch, 1000, block1k="dies", chain_c="hangs")
    by_name = {found["name"]: found for found in findings.benchmarks}
    assert set(by_name) == {own.name for own in BENCHMARKS}
    assert [name for name, found in by_name.items() if not found["complete"]] == ["block1k", "chain_c"]
    assert findings.lost == ["LLaMA block, 1K tokens: exit code 9, out of memory"]
    assert findings.broken == ["matrix chain C: no answer in time"]
    assert not findings.passed
    text = page(findings, {}, 1.0)
    assert "- LLaMA block, 1K tokens: measured one after another, not in turns" in text
    assert "- **did not end**: matrix chain C: no answer in time" in text


def test_benchmarks_that_are_not_reached_are_told(monkeypatch):
    findings, _ = benchmarked(monkeypatch, 45, chain_a="hangs")
    assert [found["name"] for found in findings.benchmarks] == ["block8k", "block1k", "chain_a"]
    assert findings.left == [own.title for own in BENCHMARKS[3:]]
    assert "**ended early**, after | 1 s" in page(findings, {}, 1.0)


def test_turns_are_interleaved_and_all_samples_kept():
    order = []

    def contender(name):
        return Contender(lambda: order.append(name), lambda: None, lambda: None)

    found = measured({"a": contender("a"), "b": contender("b")}, seconds=0, rounds=4)
    assert found.keys() == {"a", "b"}
    assert all(len(own) == 4 and min(own) >= 0 for own in found.values())
    turns = "".join(order)[8:]  # after the warming up
    assert turns == "aaabbb" + "bbbaaa" + "aaabbb" + "bbbaaa"


def test_the_gpus_state_is_asked_for_between_rounds_while_it_works(monkeypatch):
    order, states = [], []

    def sample():
        order.append("state")
        return {"clocks.sm": "1980"}

    monkeypatch.setattr(benchmark.gpu_states, "sample", sample)
    own = Contender(lambda: order.append("run"), lambda: order.append("wait"), lambda: None)
    found = measured({"a": own}, seconds=0, rounds=2, states=states)
    assert states == [{"round": "0", "clocks.sm": "1980"}, {"round": "1", "clocks.sm": "1980"}]
    assert order[-5:] == ["run", "run", "run", "state", "wait"]
    assert len(found["a"]) == 2


def test_plans_are_listed_without_a_fork(monkeypatch, tmp_path):
    """What CUDA has begun in a process does not survive a fork of it."""
    from einc_runtime.execution.cuda import precompile

    def compile_all(jobs, place, seconds, failed):
        assert {architecture for _, architecture in jobs} == {"sm_90"}
        return len(jobs)

    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a fork"))
    monkeypatch.setattr(precompile, "compile_all", compile_all)
    monkeypatch.setattr(worker, "BENCHMARKS", BENCHMARKS[2:3])
    monkeypatch.setenv("EINC_KERNEL_CACHE", str(tmp_path))
    runs = [run for run in CPU.runs() if run.case.title == "merges f32"]
    assert [run.layout for run in runs] == list(Layout)
    monkeypatch.setattr(places, "list_runs", lambda *_, **__: runs)
    (found,) = worker.kernels(CPU, 1.0)
    assert found["kernels"] > 3
    assert 0 < found["compiled"] <= worker.REHEARSED


def test_where_it_ran_is_told_also_where_nothing_can_be_asked(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = facts.facts()
    assert found["commit"] == found["GPU, memory, driver"] == "unknown"
    assert f"numpy {np.__version__}" in found["packages"]


CEILINGS = Ceilings(3e12, 8e14)


class Told:
    """A contender of `benchmark.run` that is there at once."""

    def __init__(self, value=1.0, tells=("a table",)):
        self.closed, self.value, self.tells = 0, value, tells

    def contender(self):
        return Contender(nothing, nothing, lambda: np.full(3, self.value), self.close, self.steps)

    def steps(self, ceilings, milliseconds):
        assert ceilings == CEILINGS
        assert milliseconds >= 0
        if isinstance(self.tells, Exception):
            raise self.tells
        return list(self.tells)

    def close(self):
        self.closed += 1


def contended(monkeypatch, seconds, **made):
    """All outcomes of a benchmark whose contenders are given: a Told, or an error."""
    own, clock = BENCHMARKS[0], [0.0]
    monkeypatch.setattr(benchmark, "compiled", lambda *_: None)
    monkeypatch.setattr(benchmark, "_drawn", lambda *_: {})
    monkeypatch.setattr(benchmark, "by_pytorch", lambda *_: ["products"])
    monkeypatch.setattr(type(CPU), "tidy", lambda self: None)

    def make(name):
        clock[0] += 10
        if isinstance(made.get(name), Exception):
            raise made[name]
        return made.get(name, Told()).contender()

    monkeypatch.setattr(benchmark, "_einc", lambda name, *_: make({benchmark.ONE: "one"}.get(name, "many")))
    monkeypatch.setattr(benchmark, "_torch", lambda *arguments: make(arguments[-1]))
    monkeypatch.setattr(benchmark, "_jax", lambda *_: make("jax"))
    monkeypatch.setattr(benchmark, "_with_own_attention", lambda *_: make("own attention"))
    monkeypatch.setattr(benchmark, "_tuned", lambda *_: make("tuned"))
    monkeypatch.setattr(benchmark, "perf_counter", lambda: clock[0])
    return [replace(outcome, ms=dict(outcome.ms)) for outcome in benchmark.run(own, CPU, seconds, CEILINGS)]


def test_outcomes_grow_and_contenders_are_closed(monkeypatch):
    one = Told()
    many = Told(tells=RuntimeError("no events are left"))
    outcomes = contended(monkeypatch, 1000, one=one, many=many, jax=ImportError("no jax"))
    assert [len(outcome.ms) for outcome in outcomes] == [1, 2, 3, 4, 4, 5, 6, 6, 6]
    assert [outcome.complete for outcome in outcomes] == [False] * 7 + [True] * 2
    assert outcomes[-1].steps == {"einc": ["a table"], "torch": ["products"]}
    assert outcomes[-1].errors == {"einc": 0, "einc, 8 sites": 0, "einc, own attention": 0, "einc, tuned": 0}
    no_events = "steps of einc, 8 sites"
    assert outcomes[-1].problems == {"jax": "ImportError: no jax", no_events: "RuntimeError: no events are left"}
    assert "in make" in outcomes[-1].tracebacks["jax"]
    assert outcomes[-1].tracebacks[no_events].endswith("RuntimeError: no events are left\n")
    assert Findings(benchmarks=[asdict(outcomes[-1])]).passed
    assert one.closed == 1


def test_nothing_is_begun_after_the_time_and_what_is_wrong_is_seen(monkeypatch):
    last = contended(monkeypatch, 25, one=Told(1.5))[-1]
    assert last.complete
    assert set(last.ms) == {"einc", "torch eager", "einc, 8 sites"}
    assert last.problems == dict.fromkeys(
        ("torch compiled, CUDA graph", "einc, tuned", "jax", "einc, own attention"), benchmark.NO_TIME
    )
    assert last.errors == {"einc": 0.5, "einc, 8 sites": 0}


def test_a_tuned_plan_runs_with_what_was_chosen(monkeypatch):
    """On the fake driver: the second of two ways is faster, and the executor that is measured is made with it."""
    own, made = BENCHMARKS[1], []
    bundle = benchmark.compiled(own, CPU.definitions(own), 1)
    arrays = arrays_of(bundle)
    executor = type(CPU).executor

    def recorded(self, bundle, *arguments, tunings=()):
        made.append(tuple(tunings))
        return executor(self, bundle, *arguments, tunings=tunings)

    monkeypatch.setattr(type(CPU), "executor", recorded)
    monkeypatch.setattr(benchmark, "FOR_TUNING", 100.0)
    outcome = benchmark.Outcome("block1k")
    contender = benchmark._tuned(bundle, arrays, outcome, CPU)
    first, (tuning,) = made
    assert first == ()
    assert tuning.gpu == "Fake 0"
    assert tuning.choices
    assert {own.algorithm for own in tuning.choices.values()} == {"numpy"}
    assert any("by our own kernel numpy, 2 ways" in line for line in outcome.kernels)
    contender.enqueue()
    contender.wait()
    assert np.isfinite(contender.result().astype("f8")).all()
    contender.close()


def test_arguments_of_workers_name_the_place():
    assert of(["correctness", "3"]) == (GPU, ["correctness", "3"])
    assert of(["correctness", "3", "--rehearse"]) == (CPU, ["correctness", "3"])
    there = replace(GPU, gpus=4, broken=frozenset({"rows", "pinned"}))
    assert of([*there.arguments, "links"]) == (there, ["links"])
    assert set(CPU.runs()) < set(replace(GPU, gpus=2).runs())
    assert {run.number for run in CPU.runs()} == {n for n, case in enumerate(CASES) if not case.slow}
