"""Results of cases, kept in `docs/benchmarks` in a file for each processor; `tests.bench.pages` makes pages of them.

A record is what one run of a case gave: when, of which commit, and a line for each competitor.
"""

from __future__ import annotations

import json
import platform
import re
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from einc_runtime.kernels.processor import INSTRUCTION_LEVELS, find_level, list_levels, name_processor, read_cpuinfo
from tests.bench.measure import Ratio, Row

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
LEVEL_WORDS = {
    "x86-64-v2": "SSE 4.2", "x86-64-v3": "AVX2", "x86-64-v4": "AVX-512", "x86-64-v4-bf16": "AVX-512 with bf16",
    "x86-64-v4-amx": "AVX-512 and AMX",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A competitor in a record: median milliseconds, megabytes held, seconds to the first result, and rounds run.

    `ratio` is einc's time relative to this one: the quartiles of the pairs. Older records have none, and no rounds, for
    variants that dropped out.
    """

    competitor: str
    ms: float = 0
    megabytes: int = 0
    first_s: float = 0
    rounds: int = 0
    ratio: tuple[float, float, float] | None = None
    absent: str = ""

    @property
    def median(self) -> float | None:
        return None if self.ratio is None else self.ratio[1]


@dataclass(frozen=True, slots=True)
class Record:
    """A run of a case; `commit` is the newest one that changed the compiler or the runtime."""

    date: str
    commit: str
    pairs: int
    versions: str
    rows: tuple[Entry, ...]

    def best(self, *kinds: str) -> Entry | None:
        """The fastest competitor whose name begins with one of these, of those that stayed until the last round."""
        rivals = [
            row for row in self.rows[1:] if row.ratio and row.rounds == self.pairs and row.competitor.startswith(kinds)
        ]
        return max(rivals, key=lambda row: row.median or 0, default=None)

    @property
    def stamp(self) -> str:
        return f"{self.date} ({self.commit})"


@dataclass(slots=True)
class Results:
    """All records of a processor by the names of their cases. `level` is what it computed with."""

    processor: str
    level: str
    cases: dict[str, Record] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        words = re.sub(r"[^a-z0-9]+", "-", self.processor.lower()).strip("-")
        return FOLDER / f"{words}-{self.level}.json"

    @property
    def title(self) -> str:
        return f"{self.processor}, {LEVEL_WORDS.get(self.level, self.level)}"


def summarize(rows: list[Row]) -> tuple[Entry, ...]:
    """What is kept of measured rows, of which the first is einc's."""
    ours, entries = rows[0], []
    for row in rows:
        if row.absent:
            entries.append(Entry(row.competitor, absent=row.absent))
            continue
        ratio = Ratio.of(ours, row) if row is not ours and ours.times else None
        quartiles = None if ratio is None else (round(ratio.low, 3), round(ratio.median, 3), round(ratio.high, 3))
        ms, held, first = round(statistics.median(row.times), 2), round(row.resident), round(row.first, 2)
        entries.append(Entry(row.competitor, ms, held, first, len(row.times), quartiles))
    return tuple(entries)


def describe_run(rows: list[Row], pairs: int) -> Record:
    """The record of a run that ends now, of the code that is checked out."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--abbrev=8", "--", "einc", "runtime"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return Record(datetime.now(UTC).date().isoformat(), commit, pairs, list_versions(), summarize(rows))


def store(name: str, record: Record) -> Path:
    """Puts a record into the file of this processor in the place of an older one of its case."""
    level = find_level()
    usable = [known.name for known in INSTRUCTION_LEVELS if known in list_levels()]
    results = Results(name_hardware(), level.name if level else usable[-1] if usable else platform.machine())
    if results.path.exists():
        results = read_results(results.path)
    results.cases[name] = record
    write_results(results)
    return results.path


def read_results(path: Path) -> Results:
    written = json.loads(path.read_text(encoding="utf-8"))
    return Results(written["processor"], written["level"], {n: _record(case) for n, case in written["cases"].items()})


def _record(written: dict[str, Any]) -> Record:
    rows = tuple(Entry(**{**row, "ratio": tuple(row["ratio"]) if "ratio" in row else None}) for row in written["rows"])
    return Record(**{**written, "rows": rows})


def write_results(results: Results) -> None:
    """A line for each competitor, so that differences are read easily; what is zero or empty is left out."""
    cases = []
    for name, record in sorted(results.cases.items()):
        head = {key: value for key, value in asdict(record).items() if key != "rows"}
        rows = [json.dumps({key: value for key, value in asdict(row).items() if value}) for row in record.rows]
        lines = ",\n    ".join(rows)
        cases.append(f'  {json.dumps(name)}: {json.dumps(head)[:-1]}, "rows": [\n    {lines}]}}')
    top = f'{{"processor": {json.dumps(results.processor)}, "level": {json.dumps(results.level)}, "cases": {{\n'
    results.path.parent.mkdir(exist_ok=True)
    results.path.write_text(top + ",\n".join(cases) + "}}\n", encoding="utf-8")


def read_all() -> list[Results]:
    """Those of all processors, the most capable first."""
    levels = [level.name for level in INSTRUCTION_LEVELS]
    results = [read_results(path) for path in sorted(FOLDER.glob("*.json"))]
    return sorted(results, key=lambda each: -levels.index(each.level) if each.level in levels else 1)


def name_hardware() -> str:
    """The processor's name with its family and its model, as virtual machines shorten names."""
    name, fields = re.sub(r"\((R|TM)\)", "", name_processor().partition(" as ")[0]), read_cpuinfo()
    name = " ".join(name.split())
    if "cpu family" not in fields or "model" not in fields:
        return name
    return f"{name} (family {fields['cpu family']}, model {fields['model']})"


def list_versions() -> str:
    """The versions of what took part."""
    versions = [f"Python {platform.python_version()}"]
    peers = ("torch", "transformers", "jax", "onnxruntime", "openvino", "llama-cpp-python")
    for package in ("numpy", "onednn-cpu-gomp", "llvmlite", *peers):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return ", ".join(versions)
