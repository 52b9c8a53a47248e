"""The experiments: pages say what their plans say, runs go on where they were, and sums are right."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.special import stdtrit

from tests.bench.experiments import paper
from tests.bench.experiments.__main__ import main
from tests.bench.experiments.configurations import WORKLOADS, Configuration, Outcome, read_record, record_of
from tests.bench.experiments.contender import EINC, JAX, REHEARSAL, TORCH, Entry, Measured, measure, read_entry
from tests.bench.experiments.descriptions import describe_experiments
from tests.bench.experiments.measured import describe_entries, half_width, measure_all, tabulate, write_files
from tests.bench.experiments.pages import (
    FOLDER,
    OVERVIEW,
    fill,
    fill_overview,
    format_json,
    put,
    read_json,
)
from tests.bench.experiments.runner import run
from tests.bench.experiments.summaries import correlate, summarize
from tests.bench.experiments.tables import Table, format_csv, mean


def committed(number):
    return read_json((FOLDER / f"experiment-{number}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(1, 6))
def test_pages_say_what_their_plans_say(number):
    outcomes = committed(number)
    page = (FOLDER / f"experiment-{number}.md").read_text(encoding="utf-8")
    assert fill(page, number, outcomes) == page
    table = (FOLDER / f"experiment-{number}.csv").read_text(encoding="utf-8")
    assert table == format_csv(summarize(number, outcomes).tables)
    experiment = describe_experiments()[number - 1]
    assert set(outcomes) <= set(experiment.configurations)
    assert (FOLDER / f"experiment-{number}.json").read_text(encoding="utf-8") == format_json(experiment, outcomes)
    svg = (FOLDER / f"experiment-{number}.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml")
    assert "<dc:date>" not in svg


def test_the_overview_says_what_the_plans_say():
    outcomes = {}
    for number in range(1, 6):
        outcomes |= committed(number)
    page = OVERVIEW.read_text(encoding="utf-8")
    assert fill_overview(page, outcomes) == page
    assert page.count("| [4](experiments/experiment-4.md) |") == len(paper.NAIVE_OVER_OPTIMIZED)


def test_a_run_goes_on_where_it_was(tmp_path):
    wanted = [Configuration("chain_c", sites=n, schedule="naive", selector=s) for n in (1, 2) for s in ("greedy",)]
    wanted.append(Configuration("b1x1k", sites=2, schedule="naive"))
    said = []
    first = run(wanted[:1], 1, said.append, tmp_path)
    assert said[0] == "1 plans: 0 are known, 1 to compile on 1 processes"
    said.clear()
    found = run([*wanted, wanted[0]], 1, said.append, tmp_path)
    assert said[0] == "3 plans: 1 are known, 2 to compile on 1 processes"
    assert "best so far" in said[1]
    assert list(found) == wanted
    assert found[wanted[0]] == first[wanted[0]]
    said.clear()
    assert run(wanted, 1, said.append, tmp_path) == found
    assert len(said) == 1
    one, two, _ = found.values()
    assert one.moved == 0
    assert one.predicted_ms == one.free_ms
    assert two.moved > 0
    assert one.free_ms / 2 < two.predicted_ms < one.predicted_ms
    assert two.predicted_ms > two.free_ms


def test_what_does_not_fit_is_an_outcome(tmp_path):
    big = Configuration("chain_e", schedule="naive", selector="random", seed=12)
    (outcome,) = run([big], 1, print, tmp_path).values()
    assert "GiB" in outcome.problem
    assert not outcome.fits
    assert read_record(record_of(big, outcome)) == (big, outcome)


def invented(placement="replicated"):
    """Outcomes of all configurations, whose random plans have r = -0.5."""
    draws = np.random.default_rng(3)
    found = {}
    for experiment in describe_experiments(draws=6):
        for each in experiment.configurations:
            time = (1 + WORKLOADS.index(each.workload)) * 1.25 * 8 / each.sites
            if each.workload == "b1x128k":
                time *= 40
            cost = int(draws.integers(1, 1000))
            found[each] = Outcome(
                time + cost / 1e3 * (each.selector == "random"), time / 2, cost, 5, 7, (("a", "b/8"),)
            )
    return found


def test_json_keeps_every_plan():
    outcomes = invented()
    for experiment in describe_experiments(draws=6):
        own = {each: outcomes[each] for each in experiment.configurations}
        again = read_json(format_json(experiment, own))
        assert list(again) == list(own)
        for each, outcome in again.items():
            assert outcome == (own[each] if each.selector != "random" else replace(own[each], cuts=()))


def test_correlation_and_means():
    outcomes = invented()
    own = [
        (outcome.cost, outcome.predicted_ms)
        for each, outcome in outcomes.items()
        if (each.selector, each.workload, each.placement, each.schedule)
        == ("random", "chain_a", "replicated", "synthesized")
    ]
    assert len(own) == 6
    assert correlate(outcomes, "chain_a", "replicated") == pytest.approx(np.corrcoef(np.array(own).T)[0, 1])
    assert mean([2.0, 8.0]) == pytest.approx(4)
    assert mean([2.0, None]) is None
    gone = {e: replace(o, problem="too large") if e.selector == "random" else o for e, o in outcomes.items()}
    assert correlate(gone, "chain_a", "replicated") is None


def test_the_paper_is_compared_with_kernels_alone():
    outcomes = invented()
    kernels = outcomes[Configuration("b1x128k")].free_ms
    findings = summarize(1, {each: outcomes[each] for each in describe_experiments(6)[0].configurations}).findings
    assert f"take {kernels:.1f} ms" in findings[1]
    assert f"is {paper.EINSUMMABLE_MS['b1x128k'] / kernels:.2f} times as long" in findings[1]


def test_tables():
    table = Table("t", "What it is.", ("", "ms", "n"), (("a", 1234.5678, 3), ("b", None, None)), digits=1)
    lines = table.markdown().splitlines()
    assert lines[2:] == ["|  | ms | n |", "| --- | ---: | ---: |", "| a | 1,234.6 | 3 |", "| b |  |  |"]
    assert format_csv([table]) == "table,,ms,n\nt,a,1234.57,3\nt,b,,\n"
    marked = "x\n<!-- m -->\nold\n<!-- end of m -->\ny"
    assert put(marked, "m", "new") == "x\n<!-- m -->\nnew\n<!-- end of m -->\ny"
    with pytest.raises(SystemExit):
        put(marked, "other", "new")


@pytest.mark.slow
def test_the_same_plot_twice(tmp_path):
    from tests.bench.experiments.plots import draw

    outcomes = invented()
    for name in ("one.svg", "two.svg"):
        draw(5, {e: o for e, o in outcomes.items() if e.selector == "random"}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_intervals_are_those_of_student():
    draws = random.Random(5)
    times = tuple(draws.gauss(10, 1) for _ in range(10))
    assert half_width(times) == pytest.approx(stdtrit(9, 0.975) * np.std(times, ddof=1) / math.sqrt(10), rel=1e-3)


def test_what_is_measured():
    entries = describe_entries("cuda", (1, 4, 8), 20, WORKLOADS)
    assert len(set(entries)) == len(entries)
    assert {e.how for e in entries if e.contender == TORCH and e.configuration.sites == 8} == {
        "batch",
        "sequence",
        "rows",
    }
    assert sum(e.configuration.selector == "random" for e in entries) == 200
    assert {e.configuration.sites for e in entries if e.contender == JAX} == {1, 4, 8}
    assert all(read_entry(json.dumps(asdict(e))) == e for e in entries)


def test_a_rehearsal_of_a_plan_on_gpus():
    entry = Entry(Configuration("b8x1k", "dgx-a100", 2), EINC, REHEARSAL)
    found = measure(entry)
    assert len(found.times) == 10
    assert found.predicted_ms > 0
    assert found.cost > 0


def test_measurements_are_kept_and_shown(tmp_path, monkeypatch):
    entries = describe_entries("cpu", (1, 8), 5, ("b1x1k", "chain_a"))
    asked = []

    def pretend(text, path):
        asked.append(text)
        entry = read_entry(text)
        number = len(asked)
        broken = entry.contender == JAX and entry.configuration.sites == 8
        made = Measured(tuple(float(number + i % 2) for i in range(10)), number / 2, 10 * number)
        path.write_text(json.dumps(asdict(Measured(problem="not here: jax") if broken else made)))

    monkeypatch.setattr("tests.bench.experiments.measured._measure_apart", pretend)
    said = []
    found = measure_all(entries, tmp_path, said.append)
    assert len(asked) == len(entries) == len(said)
    assert "best so far" in said[0]
    assert measure_all(entries, tmp_path, said.append) == found
    assert len(asked) == len(entries)
    tables = {table.name: table for table in tabulate(found)}
    blocks = tables["systems, blocks"].rows
    assert [row[2] for row in blocks if row[1] == 8][-3:] == ["torch by batch", "torch by sequence", "jax"]
    assert blocks[-1][3:] == (None, None, None, "not here: jax")
    assert blocks[0][3:5] == (1.5, pytest.approx(2.262 * np.std([1, 2] * 5, ddof=1) / math.sqrt(10), rel=1e-3))
    assert [row[-1] for row in tables["foretold"].rows] == [5, 5]
    assert [row[1] for row in tables["foretold"].rows] == [pytest.approx(1)] * 2
    monkeypatch.setattr("tests.bench.experiments.plots.draw_measured", lambda found, path: None)
    write_files(found, "cpu", "a command", tmp_path / "out")
    assert "`a command`" in (tmp_path / "out" / "measured.md").read_text()
    assert len(json.loads((tmp_path / "out" / "measured.json").read_text())["entries"]) == len(entries)


def test_wrong_numbers_of_draws(capsys):
    with pytest.raises(SystemExit):
        main(["--draws", "1"])
    assert "two draws" in capsys.readouterr().err
