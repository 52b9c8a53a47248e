"""What of `make gpu-check` needs no GPU: its cases on the fake driver, references, the page, workers that die."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "runtime")]

from cuda_fake import FakeDriver, NumpyKernels  # noqa: E402

from runtime.bundle import AggregateTask, KernelTask  # noqa: E402
from runtime.executors import cuda  # noqa: E402
from runtime.executors.cuda import CudaExecutor  # noqa: E402
from runtime.kernels import gpu_plans  # noqa: E402
from runtime.kernels.attention_libraries import ENVIRONMENT  # noqa: E402
from runtime.session import Session  # noqa: E402
from tests.gpu import benchmark, steps  # noqa: E402
from tests.gpu import check as gpu_check  # noqa: E402
from tests.gpu.benchmark import Contender, measured  # noqa: E402
from tests.gpu.benchmark import compiled as compiled_benchmark  # noqa: E402
from tests.gpu.cases import BENCHMARKS, CASES, SITES  # noqa: E402
from tests.gpu.correctness import arrays_of, check, compiled, largest_error, reference  # noqa: E402
from tests.gpu.models import TEXTS  # noqa: E402
from tests.gpu.places import CPU, GPU, of  # noqa: E402
from tests.gpu.report import Findings, holds, page, summary  # noqa: E402
from tests.gpu.wheels import fits, unpack  # noqa: E402

SMALL = [(case, case.sites[number % len(case.sites)]) for number, case in enumerate(CASES) if not case.slow]


def on_fake(bundle):
    driver = FakeDriver(1, seed=len(bundle.tasks))
    executor = CudaExecutor(bundle, [0] * len(bundle.memory), driver=driver, kernels=NumpyKernels(driver))
    return Session(bundle, executor=executor)


@pytest.mark.parametrize(("case", "sites"), SMALL, ids=[f"{case.title} {sites}" for case, sites in SMALL])
def test_cases_hold_on_the_fake_driver(case, sites):
    expected = reference(case, arrays_of(compiled(case, 1, case.dtype)))
    result = check(case, sites, on_fake, expected, None)
    assert result.holds, result
    wrong = {name: array + 1 if array.dtype.kind != "b" else ~array for name, array in expected.items()}
    assert largest_error(wrong, expected) > result.tolerance


def test_attention_is_checked_with_and_without_libraries(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "torch")
    asked = []

    def make_session(bundle):
        asked.append(os.environ[ENVIRONMENT])
        return on_fake(bundle)

    for dtype, expected in (("f16", ["torch", "einc"]), ("f32", ["torch"])):
        case = next(case for case in CASES if (case.name, case.dtype) == ("attention_cases", dtype))
        asked.clear()
        assert check(case, 1, make_session, reference(case, arrays_of(compiled(case, 1, dtype))), None).holds
        assert asked == expected
    assert os.environ[ENVIRONMENT] == "torch"


def test_every_operator_is_in_some_case():
    from einc.ops import registry

    called = {name for text in TEXTS.values() for name in re.findall(r"\b([a-z_]+)\(", text)}
    assert set(registry.names()) <= called


def test_every_kernel_and_aggregation_is_in_some_plan():
    kernels, aggregations, merges = set(), set(), set()
    for number, sites in GPU.runs():
        if CASES[number].name in TEXTS and CASES[number].dtype == "f32":
            bundle = compiled(CASES[number], sites, CASES[number].dtype)
            for task in bundle.tasks:
                if isinstance(task, KernelTask):
                    kernels.add(bundle.operations[task.operation].kernel)
                elif isinstance(task, AggregateTask):
                    (aggregations if len(task.writes) == 1 else merges).add(task.aggregation)
    assert kernels == set(gpu_plans.KERNELS)
    assert merges == set(gpu_plans.MERGES)
    assert aggregations == {"sum", "prod", "max", "min"}


@pytest.mark.parametrize("sites", SITES)
def test_cases_cover_every_number_of_sites_and_kind_of_model(sites):
    there = {CASES[number].name for number, own in GPU.runs() if own == sites}
    assert there >= {"ffn", "chain_a", "chain_b", "chain_c", "llama_block", "llama", "llama_decode", "bert", *TEXTS}


def test_pytorch_and_numpy_agree():
    pytest.importorskip("torch")
    from tests.gpu.torch_models import reference as torch_reference

    for name, dtype in (("ffn", "bf16"), ("chain_a", "f32"), ("llama_block", "f32"), ("llama_block", "f16")):
        case = next(case for case in CASES if (case.name, case.dtype) == (name, dtype) and not case.slow)
        bundle = compiled(case, 1, dtype)
        arrays = arrays_of(bundle)
        assert largest_error(torch_reference(bundle, arrays, "cpu"), reference(case, arrays)) < 1e-9
    elementwise = next(case for case in CASES if case.name == "elementwise")
    assert torch_reference(compiled(elementwise, 1, "f32"), {}, "cpu") is None


@pytest.mark.slow
def test_pytorchs_models_can_be_compiled_whole():
    torch = pytest.importorskip("torch")
    from tests.gpu.torch_models import given, model_of

    for name in ("ffn", "chain_a", "llama_block"):
        case = next(case for case in CASES if (case.name, case.dtype) == (name, "f32") and not case.slow)
        bundle = compiled(case, 1, "f32")
        weights = given(bundle, arrays_of(bundle), device="cpu")
        model = model_of(bundle)
        with torch.inference_mode():
            whole = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")(weights)
            assert torch.equal(whole, model(weights))


@pytest.mark.slow
def test_jax_computes_the_same():
    pytest.importorskip("jax")
    from tests.gpu import jax_models

    case = next(case for case in CASES if (case.name, case.dtype) == ("llama_block", "f32") and not case.slow)
    case = replace(case, definitions=(("seq_lens", "[13]"), *case.definitions[1:]))
    bundle = compiled(case, 1, "f32")
    arrays = arrays_of(bundle)
    found = np.asarray(jax_models._block(bundle, "xla")(arrays))
    assert largest_error({"y": found}, reference(case, arrays)) < 1e-5
    chain = next(case for case in CASES if case.name == "chain_a" and not case.slow)
    arrays = arrays_of(compiled(chain, 1, "f32"))
    found = np.asarray(jax_models._chain(compiled(chain, 1, "f32"))(arrays))
    assert largest_error({"y": found}, reference(chain, arrays)) < 1e-5


@pytest.mark.parametrize("sites", [1, 4])
def test_where_the_time_of_a_plan_goes(monkeypatch, sites):
    case = next(case for case in CASES if case.name == "llama_block" and not case.slow)
    bundle = compiled(case, sites, "f32")
    driver = FakeDriver(1)
    executor = cuda.CudaExecutor(bundle, [0] * sites, driver=driver, kernels=NumpyKernels(driver))
    *table, blank, last = steps.steps(executor, 10.0)
    assert driver.counts["launch"] == 3  # 30 ms ahead
    assert not blank
    assert re.match(r"All in [0-9.]+ ms, of which some step ran in [0-9.]+; steps together", last)
    rows = [line.split(" | ") for line in table[2:]]
    own = {row[1]: row for row in rows}
    assert own["attention a"][2] == own["contract down"][2] == str(sites)
    assert sum(int(row[2]) for row in rows) == sum(
        step.lane is not None and work.task >= 0
        for step, work in zip(executor._ready.layout.steps, executor._ready.layout.works, strict=True)
    )
    for row in rows:
        assert float(row[4]) == pytest.approx(int(row[2]) * float(row[3]), abs=1e-2)
    executor.close()
    task = next(task for task in bundle.tasks if getattr(task, "operation", None) is not None)
    moved = sum(steps._bytes(bundle, region) for region in (*task.reads, *task.writes))
    assert steps.least(bundle, task) == pytest.approx(1e3 * moved / steps.BYTES)  # a norm: all of it is memory
    assert steps._covered([(0.0, 2.0), (5.0, 6.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0


def test_pytorchs_times_of_products_and_attention():
    pytest.importorskip("torch")
    case = next(case for case in CASES if case.name == "llama_block" and not case.slow)
    case = replace(case, definitions=(("seq_lens", "[13]"), *case.definitions[1:]))
    lines = steps.by_pytorch(compiled(case, 1, "f32"), CPU)
    assert [re.sub(r"[0-9.]+ ms", "1 ms", line) for line in lines] == [
        f"- PyTorch alone, {name}: {'math' if name == 'a' else 'einsum'} 1 ms"
        for name in ("q", "k", "v", "a", "o", "gate", "up", "down")
    ]


def test_einc_contends_with_one_launch_for_every_computation(monkeypatch):
    case = next(case for case in CASES if case.name == "chain_c" and not case.slow)
    bundle = compiled(case, 4, "f32")
    arrays = arrays_of(bundle)
    driver = FakeDriver(1)
    monkeypatch.setattr(cuda, "_real_driver", lambda: driver)
    monkeypatch.setattr(cuda, "_real_kernels", lambda: NumpyKernels(driver))
    outcome = benchmark.Outcome("chain_c")
    contender = benchmark._einc("einc", bundle, arrays, outcome, GPU)
    before = driver.counts["launch"]
    assert measured({"einc": contender}, 0, rounds=2)["einc"] > 0
    assert driver.counts["launch"] - before == 2 + 2 + 2 * 3
    assert largest_error({"y": contender.result()}, reference(case, arrays)) < 1e-5
    assert outcome.host_us["einc"] > 0
    assert any("contract by numpy" in line for line in outcome.kernels)


@pytest.mark.parametrize("own", BENCHMARKS, ids=lambda own: own.name)
def test_benchmarks_compile_at_full_size(own):
    for sites in (1, 8):
        bundle = compiled_benchmark(own, own.definitions, sites)
        assert len(bundle.memory) == sites
        assert sum(bundle.memory) < 70e9  # one GPU holds them all
        assert [bundle.tensors[output.tensor].name for output in bundle.outputs] == ["y"]


def test_errors_are_seen():
    one = {"y": np.array([1.0, 2.0]), "n": np.array([3, 4]), "b": np.array([True])}
    assert largest_error(one, one) == 0
    assert largest_error(one | {"y": np.array([1.0, 2.2])}, one) == pytest.approx(0.1)
    for other in (
        {"n": np.array([3, 5])},
        {"b": np.array([False])},
        {"y": np.array([np.nan, 2.0])},
        {"y": np.array([[1.0, 2.0]])},
        {"n": np.array([3.0, 4.0])},
    ):
        assert largest_error(one | other, one) == np.inf


# The page


def record(case="ffn f16", **changed):
    usual = {"sites": 1, "error": 1e-3, "torch_error": 2e-3, "tolerance": 1e-2, "same_bits": True, "problem": ""}
    return {"case": case, "kernels": ("contract: cublas", "map: triton"), "seconds": 0.1, **usual, **changed}


def timing(name="block8k", ours=1.0, many=1.1, error=1e-3, **problems):
    return {
        "name": name,
        "ms": {"einc": ours, "einc, 8 sites": many, "torch eager": 1.2, "torch compiled, CUDA graph": 1.0},
        "problems": problems,
        "errors": {"einc": error, "einc, 8 sites": error},
        "host_us": {"einc": 9.0, "einc, 8 sites": 61.0},
        "kernels": ["einc: 7 contract by cublas"],
        "notes": {},
        "complete": True,
    }


def test_the_page_tells_what_holds_and_what_does_not():
    findings = Findings(
        [record(), record(sites=8), record("bert f32", error=None, torch_error=None, problem="boom\nx")]
    )
    findings.benchmarks = [timing(), timing("chain_a", ours=1.5, jax="ImportError: no jax")]
    findings.checks[0]["notes"] = findings.checks[1]["notes"] = ("attention of torch is not used: why",)
    findings.lost, findings.left = ["rows on 2 sites: exit code 3"], ["matrix chain B"]
    text = page(findings, {"GPU": "Fake"}, 12.3)
    assert "2 of 3 plans are right" in text
    assert "| ffn f16 | 1: 1.0e-03, 8: 1.0e-03 | 2.0e-03 | 0.01 | cublas, triton |" in text
    assert "- **wrong**: bert f32 on 1 sites: boom x" in text
    assert "- **took the process with it**: rows on 2 sites" in text
    assert "- not reached in time: matrix chain B" in text
    assert text.count("- attention of torch is not used: why") == 1
    row = next(line for line in text.splitlines() if line.startswith("| LLaMA block, 8K tokens"))
    assert row.split("|")[2:] == [
        " 1.000 ",
        "  ",
        " 1.200 ",
        " 1.000 ",
        "  ",
        " 1.000 ",
        " 1.10 ",
        " 9, **61** ",
        " 1.0e-03 ",
        "",
    ]
    row = next(line for line in text.splitlines() if line.startswith("| matrix chain A"))
    assert "**1.500**" in row
    assert "matrix chain A, jax: ImportError: no jax" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert not findings.passed
    assert "boom" in summary(findings)


def test_the_page_has_every_traceback_once_and_where_the_time_goes():
    text = "Traceback:\n  in launch\n```CUDARuntimeError: an illegal address"
    checks = [record(problem="x", error=None, torch_error=None, traceback=text, sites=sites) for sites in (1, 4)]
    findings = Findings([*checks, record()], [timing() | {"tracebacks": {"jax": "no jax"}}])
    findings.benchmarks[0]["steps"] = {"einc": ["| for | ms |", "| --- | --- |", "| q | 1 |"], "torch": ["- q 0.9"]}
    findings.complaints["chain_a f16 on 8 sites"] = "Fatal Python error: Segmentation fault"
    found = page(findings, {}, 1.0)
    full = found[found.index("## What failed, in full") :]
    assert "ffn f16 on 1 sites; ffn f16 on 4 sites:\n\n```text\nTraceback:\n  in launch\n~~~CUDARuntimeError" in full
    assert full.count("an illegal address") == 1
    assert "block8k, jax:\n\n```text\nno jax\n```" in full
    assert "chain_a f16 on 8 sites:\n\n```text\nFatal Python error" in full
    assert "LLaMA block, 8K tokens, einc:\n\n| for | ms |\n| --- | --- |\n| q | 1 |\n\n" in found
    assert "LLaMA block, 8K tokens, torch:\n\n- q 0.9\n" in found
    findings.checks = [record(traceback=str(n), sites=n) for n in range(30)]
    assert "and 12 more" in page(findings, {}, 1.0)
    assert "in full" not in page(Findings([record()], [timing()]), {}, 1.0)


@pytest.mark.parametrize(
    "broken",
    [{"error": 0.02}, {"torch_error": 0.02}, {"same_bits": False}, {"problem": "x"}, {"error": float("nan")},
     {"error": None, "torch_error": None}],
)  # fmt: skip
def test_a_plan_that_is_wrong_in_any_way_fails_the_check(broken):
    assert Findings([record()]).passed
    assert not holds(record(**broken))
    assert not Findings([record(), record(**broken)]).passed


def test_nothing_checked_is_not_passed_and_bad_benchmarks_fail():
    assert not Findings().passed
    assert Findings(benchmarks=[timing()]).passed
    assert not Findings(benchmarks=[timing(error=0.5)]).passed
    assert not Findings(benchmarks=[timing(error=float("nan"))]).passed
    assert not Findings(benchmarks=[timing(einc="PlanFault: no kernel")]).passed
    assert not Findings(benchmarks=[timing() | {"errors": {}}]).passed  # compared with nothing
    assert Findings(benchmarks=[timing(**{"einc, 8 sites": benchmark.NO_TIME})]).passed
    assert not Findings([record()], lost=["x"]).passed


# Workers


def test_a_worker_that_gives_no_answer_says_where_it_is(monkeypatch):
    script = (
        "import faulthandler, signal, time; faulthandler.register(signal.SIGUSR1); print('{\"ready\": 1}', flush=True)"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        gpu_check.subprocess, "Popen",
        lambda command, **options: popen([sys.executable, "-c", f"{script}\ntime.sleep(99)"], **options),
    )  # fmt: skip
    worker = gpu_check.Worker("correctness", "0")
    assert worker.record(30) == {"ready": 1}
    with pytest.raises(TimeoutError):
        worker.record(0.1)
    monkeypatch.setattr(gpu_check, "PATIENCE", 0.2)
    code, complaint = worker.end()
    assert code == -signal.SIGKILL
    assert 'File "<string>", line 2 in <module>' in complaint
    assert gpu_check.brief("a\n b\nc\nd\n  e") == "b / c / d / e"


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
    gpu_check.check_all(findings, GPU, perf_counter() + 1000, lambda: saved.append(len(findings.checks)), Dying)
    assert Dying.started == [0, 3, 4, 6]
    positions = [record["position"] for record in findings.checks]
    assert positions == [n for n in range(len(GPU.runs())) if n not in Dying.deaths | Dying.hangs]
    assert saved == list(range(1, len(positions) + 1))  # whatever was found is on the page at once
    assert len(findings.lost) == 4
    assert "exit code 3, CUDA error" in findings.lost[0]
    assert "no answer in time" in findings.lost[2]
    assert not findings.left


@pytest.mark.parametrize("how", ["f16", "f32", "told"])
def test_libraries_for_attention_are_left_alone_after_one_may_have_taken_the_device(monkeypatch, how):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    dtype = "f32" if how == "f32" else "f16"
    wanted = next(n for n, (number, _) in enumerate(GPU.runs())
                  if (CASES[number].name, CASES[number].dtype) == ("attention_cases", dtype))  # fmt: skip

    class Dying(FakeWorker):
        deaths, hangs, started = frozenset() if how == "told" else frozenset({wanted}), frozenset(), []

        def _records(self, first):
            for one in super()._records(first):
                if how == "told" and one.get("position") == wanted:
                    yield {**one, "problem": "an illegal address"}
                    return
                yield one

    findings = Findings()
    gpu_check.check_all(findings, GPU, perf_counter() + 1000, nothing, Dying)
    assert Dying.started == [0, wanted + 1]
    assert os.environ.get(ENVIRONMENT) == (None if how == "f32" else "einc")
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
    monkeypatch.setattr(gpu_check, "perf_counter", lambda: now[0])
    findings = Findings()
    gpu_check.check_all(findings, GPU, 50.0, nothing, Slow)
    assert len(findings.checks) == 3
    assert not findings.lost
    assert len(findings.left) == len(GPU.runs()) - 3


class BenchmarkWorker:
    """Two records for each benchmark; every one takes 10 seconds. `ends` says how some of them go wrong."""

    def __init__(self, now, ends, what, first, seconds):
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
        assert seconds <= gpu_check.BENCHMARK_LIMIT
        return next(self.records, None)

    def end(self):
        return 9, "out of memory"


def benchmarked(monkeypatch, deadline, **ends):
    now, findings, saved = [0.0], Findings(), []
    monkeypatch.setattr(gpu_check, "perf_counter", lambda: now[0])

    def start(*arguments):
        return BenchmarkWorker(now, ends, *arguments)

    gpu_check.benchmark_all(findings, deadline, lambda: saved.append(now[0]), start)
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


def test_turns_are_interleaved_and_medians_taken():
    order = []

    def contender(name):
        return Contender(lambda: order.append(name), lambda: None, lambda: None)

    found = measured({"a": contender("a"), "b": contender("b")}, seconds=0, rounds=4)
    assert found.keys() == {"a", "b"}
    assert all(ms >= 0 for ms in found.values())
    turns = "".join(order)[8:]  # after the warming up
    assert turns == "aaabbb" + "bbbaaa" + "aaabbb" + "bbbaaa"


def test_where_it_ran_is_told_also_where_nothing_can_be_asked(monkeypatch):
    monkeypatch.setenv("PATH", "")
    found = gpu_check.facts()
    assert found["commit"] == found["GPU, memory, driver"] == "unknown"
    assert f"numpy {np.__version__}" in found["packages"]


class Told:
    """A contender of `benchmark.run` that is there at once."""

    def __init__(self, value=1.0, tells=("a table",)):
        self.closed, self.value, self.tells = 0, value, tells

    def contender(self):
        return Contender(nothing, nothing, lambda: np.full(3, self.value), self.close, self.steps)

    def steps(self, milliseconds):
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
    monkeypatch.setattr(benchmark, "perf_counter", lambda: clock[0])
    return [replace(outcome, ms=dict(outcome.ms)) for outcome in benchmark.run(own, CPU, seconds)]


def test_outcomes_grow_and_contenders_are_closed(monkeypatch):
    one = Told()
    many = Told(tells=RuntimeError("no events are left"))
    outcomes = contended(monkeypatch, 1000, one=one, many=many, jax=ImportError("no jax"))
    assert [len(outcome.ms) for outcome in outcomes] == [1, 2, 3, 4, 4, 5, 5, 5]
    assert [outcome.complete for outcome in outcomes] == [False] * 6 + [True] * 2
    assert outcomes[-1].steps == {"einc": ["a table"], "torch": ["products"]}
    assert outcomes[-1].errors == {"einc": 0, "einc, 8 sites": 0, "einc, own attention": 0}
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
        ("torch compiled, CUDA graph", "jax", "einc, own attention"), benchmark.NO_TIME
    )
    assert last.errors == {"einc": 0.5, "einc, 8 sites": 0}


def test_arguments_of_workers_name_the_place():
    assert of(["correctness", "3"]) == (GPU, ["correctness", "3"])
    assert of(["correctness", "3", "--rehearse"]) == (CPU, ["correctness", "3"])
    assert set(CPU.runs()) < set(GPU.runs())
    assert {number for number, _ in CPU.runs()} == {n for n, case in enumerate(CASES) if not case.slow}


# A machine without a network


def test_without_a_gpu_it_says_so(capsys):
    assert gpu_check.main([]) == 69
    assert "no GPU" in capsys.readouterr().out


@pytest.mark.parametrize(("broken", "code"), [({}, 0), ({"same_bits": False}, 1)])
def test_the_page_is_written_and_the_exit_code_tells(broken, code, tmp_path, monkeypatch, capsys):
    page_file = tmp_path / "gpu-results.md"
    monkeypatch.setattr(gpu_check, "compile_kernels", lambda findings, *_: None)
    monkeypatch.setattr(gpu_check, "check_all", lambda findings, *_: findings.checks.append(record(**broken)))
    monkeypatch.setattr(gpu_check, "benchmark_all", lambda findings, *_: findings.benchmarks.append(timing()))
    assert gpu_check._run(GPU, None, page_file, 530) == code
    text = page_file.read_text()
    assert "## Correctness" in text
    assert "| LLaMA block, 8K tokens" in text
    assert "# Results on a GPU" in text
    assert "ended early" not in text
    assert text in capsys.readouterr().out
    page_file.unlink()
    gpu_check._run(CPU, "correctness", None, 530)
    assert not page_file.exists()
    assert "# Rehearsal without a GPU" in capsys.readouterr().out


def test_it_runs_from_anywhere_beside_other_packages_of_its_names(tmp_path):
    for name in ("tests", "check", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('another package')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    script = str(ROOT / "tests" / "gpu")
    found = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (69, "")
    assert "no GPU" in found.stdout
    worker = [sys.executable, script, "worker", "correctness", str(len(GPU.runs()))]  # no case is left
    found = subprocess.run(worker, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lark-1.3.1-py3-none-any.whl", True),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl", True),
        ("msgspec-0.22.0-cp311-cp311-manylinux2014_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-macosx_11_0_x86_64.whl", False),
        ("msgspec-0.22.0-cp312-cp312-manylinux2014_aarch64.whl", False),
        ("thing-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", True),
        ("thing-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", False),
        ("six-1.16.0-py2.py3-none-any.whl", True),
        ("nonsense.whl", False),
    ],
)
def test_wheels_that_fit(name, expected):
    assert fits(name, (3, 12), "x86_64") is expected


def test_wheels_are_unpacked(tmp_path):
    wheel = tmp_path / "onlyhere-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onlyhere/__init__.py", "VALUE = 5")
    assert unpack(tmp_path.glob("*.whl"), tmp_path / "site") == [wheel.name]
    assert (tmp_path / "site" / "onlyhere" / "__init__.py").read_text() == "VALUE = 5"


def test_the_check_begins_without_what_it_needs():
    """Packages that travel as wheels are found only after it has begun."""
    code = f"""
import sys
sys.path[:0] = ['.', 'tests/runtime']
sys.modules.update(dict.fromkeys({gpu_check.NEEDED}))
from tests.gpu import check
assert check.missing() == list(check.NEEDED)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_all_that_the_check_imports_is_named_as_needed():
    """Third-party modules that compiling, running and reporting load, apart from those of competitors."""
    code = """
import sys
sys.path[:0] = ['.', 'tests/runtime']
from tests.gpu import worker, check
from tests.gpu.correctness import *
from tests.gpu.cases import CASES
case = next(c for c in CASES if c.name == 'llama' and c.dtype == 'bf16')
arrays = arrays_of(compiled(case, 4, 'bf16'))
reference(case, arrays)
files = {name.split('.')[0]: getattr(module, '__file__', '') or '' for name, module in list(sys.modules.items())}
found = {name for name, file in files.items() if 'site-packages' in file}
print(' '.join(sorted(found)))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    unnamed = {name for name in found if name not in gpu_check.NEEDED and not name.startswith(("_", "__editable__"))}
    assert unnamed <= {"regex", "typing_extensions"}, unnamed  # which are taken only where they are there
