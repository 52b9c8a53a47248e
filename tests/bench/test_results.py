"""Variants drop out only in pairs, and the pages of benchmarks are those of the results that are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench import figure, pages, report, results
from tests.bench.measure import TRIALS, Row, run_rounds


def run_times(times: dict[str, list[float]], **options: bool) -> dict[str, list[float]]:
    """Rounds of competitors whose times are known beforehand."""
    (pairs,) = {len(values) for values in times.values()}
    return run_rounds({name: iter(values).__next__ for name, values in times.items()}, pairs, **options)


def test_slow_runs_of_a_fast_variant_drop_nobody() -> None:
    """As on a noisy machine, where the fastest variant had the slowest first runs."""
    times = {"llama.cpp": [11.0] * 7, "llama.cpp flash": [18.0, 19.0, 9.0, 9.0, 9.0, 9.0, 9.0], "einc": [7.0] * 7}
    assert run_times(times) == times


def test_a_variant_that_is_slower_in_every_pair_drops_out_with_what_it_ran() -> None:
    times = {"einc": [9.0] * 5, "jax8 rows": [8.0, 16.0, 8.0, 8.0, 8.0], "jax8 grid": [12.0, 24.0, 12.0, 1.0, 1.0]}
    kept = run_times(times)
    assert kept["jax8 grid"] == [12.0, 24.0, 12.0]
    assert len(kept["jax8 grid"]) == TRIALS
    assert kept["jax8 rows"] == times["jax8 rows"]
    assert run_times(times, every=True) == times


def test_programs_and_plans_do_not_drop_each_other() -> None:
    times = {
        "einc": [1.0] * 4,
        "einc 8": [9.0] * 4,
        "jax1": [50.0] * 4,
        "jax8 rows": [3.0] * 4,
        "torch eager": [7.0] * 4,
    }
    assert run_times(times) == times


def test_ratios_are_those_of_the_rounds_that_both_ran() -> None:
    ours, short = Row("einc", (2.0, 4.0, 9.0, 9.0)), Row("torch eager", (4.0, 4.0, 6.0))
    whole = Row("torch compiled", (4.0, 5.0, 18.0, 9.0))
    record = results.Record("2026-01-02", "abc", 4, "", results.summarize([ours, short, whole]))
    assert record.rows[1].ratio == (0.5, 1.0, 1.5)
    assert record.rows[1].rounds == 3
    best = record.best("torch")
    assert best is not None
    assert best.competitor == "torch compiled"  # the other one did not stay
    assert "dropped out after 3 rounds" in report.table(record)[1][-1]


def test_results_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    rows = (results.Entry("einc", 1.5, 20, 0.3, 3), results.Entry("jax1", 2.5, 30, 0.25, 3, (0.5, 0.6, 0.7)),
            results.Entry("openvino", absent="openvino is not installed"))  # fmt: skip
    record = results.Record("2026-01-02", "abc", 3, "numpy 2", rows)
    written = results.Results(
        "Some Processor (family 7, model 9)", "x86-64-v3", {"chain_a": record, "block512": record}
    )
    results.write_results(written)
    assert results.read_all() == [written]


def test_the_pages_are_those_of_the_results(tmp_path: Path) -> None:
    """`python -m tests.bench.pages` makes them."""
    panels = results.read_all()
    figure.draw(panels, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_bytes() == figure.FIGURE.read_bytes()
    for each in panels:
        assert pages.format_processor(each) == each.path.with_suffix(".md").read_text(encoding="utf-8")
    copy = Path(shutil.copy(pages.PAGE, tmp_path))
    for name, text in pages.list_sections(panels):
        report.write(name, text, copy)
    assert copy.read_bytes() == pages.PAGE.read_bytes()
