"""Writes what an experiment found: JSON with all plans, CSV with its tables, and the parts of its page between marks.

The prose of a page is written by hand; tables and sentences with numbers are between marks and always those of the
JSON file (`tests/bench/test_experiments.py`).
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from tests.bench.experiments.configurations import (
    Configuration,
    Outcome,
    Outcomes,
    read_record,
    record_of,
)
from tests.bench.experiments.descriptions import Experiment
from tests.bench.experiments.overview import tabulate_overview
from tests.bench.experiments.summaries import summarize
from tests.bench.experiments.tables import format_csv

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "experiments"
OVERVIEW = FOLDER.parent / "paper.md"
USUAL = {each.name: each.default for kind in (Configuration, Outcome) for each in fields(kind)}
"""What a record does not repeat."""


def write_files(experiment: Experiment, outcomes: Outcomes, folder: Path = FOLDER) -> None:
    """The JSON and the CSV file, and the page, whose marks must be there."""
    own = {each: outcomes[each] for each in dict.fromkeys(experiment.configurations) if each in outcomes}
    (folder / f"{experiment.name}.json").write_text(format_json(experiment, own), encoding="utf-8")
    summary = summarize(experiment.number, own)
    (folder / f"{experiment.name}.csv").write_text(format_csv(summary.tables), encoding="utf-8")
    page = folder / f"{experiment.name}.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), experiment.number, own), encoding="utf-8")


def format_json(experiment: Experiment, outcomes: Outcomes) -> str:
    """One plan per line. What is as usual is left out, and so are the cuts of random plans."""
    lines = []
    for each, outcome in outcomes.items():
        record = {key: value for key, value in record_of(each, outcome).items() if value != USUAL[key]}
        if not outcome.cuts or each.selector == "random":
            record.pop("cuts", None)
        lines.append(json.dumps(record))
    head = json.dumps({"experiment": experiment.number, "title": experiment.title, "usual": _usual()})
    return head[:-1] + ', "plans": [\n' + ",\n".join(lines) + "\n]}\n"


def read_json(text: str) -> Outcomes:
    """The plans of a JSON file."""
    document = json.loads(text)
    return dict(read_record(document["usual"] | record) for record in document["plans"])


def fill(page: str, number: int, outcomes: Outcomes) -> str:
    """The page with the tables and findings of these outcomes between its marks."""
    summary = summarize(number, outcomes)
    page = put(page, "tables", "\n\n".join(table.markdown() for table in summary.tables))
    return put(page, "findings", "\n".join(f"- {finding}" for finding in summary.findings))


def fill_overview(page: str, outcomes: Outcomes) -> str:
    """docs/paper.md with the table of all experiments."""
    return put(page, "experiments", tabulate_overview(outcomes).markdown())


def put(page: str, name: str, text: str) -> str:
    """The page with this text between the two marks of that name."""
    first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if page.count(first) != 1 or page.count(last) != 1:
        raise SystemExit(f"the page needs the marks {first.strip()} and {last} once each")
    before, rest = page.split(first)
    return before + first + text + "\n" + last + rest.split(last)[1]


def _usual() -> dict[str, object]:
    return {name: ("" if name == "cuts" else value) for name, value in USUAL.items() if name != "workload"}
