"""The figures of a case, for the terminal and for the pages; and sections of pages that other commands write."""

from __future__ import annotations

from pathlib import Path

from einc_runtime.kernels.processor import find_level
from tests.bench.cases import MULTIPLYING, Case
from tests.bench.results import FOLDER, Entry, Record, list_versions, name_hardware

DOCUMENT = FOLDER / "costs.md"
MISSED = "MISSED"
"""How a verdict says that a target is not reached, not even within 5%."""


def table(record: Record) -> list[tuple[str, str, str, str, str]]:
    """Name, median milliseconds, megabytes, seconds to the first result, and the ratio: its median and middle half."""
    lines = []
    for row in record.rows:
        if row.absent:
            lines.append((row.competitor, "-", "-", "-", row.absent))
            continue
        ratio = "" if row.ratio is None else "{1:.2f} ({0:.2f} to {2:.2f})".format(*row.ratio)
        if row.rounds < record.pairs:
            ratio += f"; dropped out after {row.rounds} rounds" if row.rounds else "dropped out"
        first = f"{row.first_s:.2f}" if row.first_s else "-"
        lines.append((row.competitor, f"{row.ms:.1f}", str(row.megabytes), first, ratio))
    return lines


def verdicts(case: Case, record: Record) -> list[str]:
    """For every target and limit what was reached, against the best competitor of that kind; and what that one leaves
    to be reached, where it is known how long multiplying alone takes."""
    told = []
    alone = record.best(MULTIPLYING)
    for kind, target in case.targets.items():
        best = record.best(kind)
        if best is not None and best.median is not None:
            said = f"at most {target:.2f} times {best.competitor}: {_judge(best.median, target)}"
            if alone is not None and alone.median:
                said += f"; multiplying alone {best.median / alone.median:.2f}"
            told.append(said)
    for row in record.rows:
        if row.median and row.competitor in case.limits:
            limit = case.limits[row.competitor]
            said = _judge(1 / row.median, limit)
            told.append(f"{row.competitor} at most {limit:.2f} times {record.rows[0].competitor}: {said}")
    return told


def _judge(ratio: float, target: float) -> str:
    state = "reached" if ratio <= target else "reached within 5%" if ratio <= target * 1.05 else MISSED
    return f"{ratio:.2f}, {state}"


def terminal(case: Case, record: Record) -> str:
    width = max(len(row.competitor) for row in record.rows) + 2
    lines = [f"\n{case.title}, {case.dtype} ({case.name})"]
    lines += [
        f"  {name:<{width}}{ms:>9} ms {held:>6} MB {first:>7} s   {ratio}"
        for name, ms, held, first, ratio in table(record)
    ]
    lines += [f"  {verdict}" for verdict in verdicts(case, record)]
    return "\n".join(lines)


def section(case: Case, record: Record) -> str:
    """The case on the page of its processor."""
    ours: Entry = record.rows[0]
    lines = [f"## {case.title}, {case.dtype}", ""]
    lines += [f"`python -m tests.bench {case.name} --pairs {record.pairs}`, {record.stamp}", ""]
    lines += [f"| | ms | MB | first | {ours.competitor}'s time relative to it |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(line)} |" for line in table(record)]
    told = [f"- {verdict}" for verdict in verdicts(case, record)]
    return "\n".join([*lines, *(["", *told] if told else []), "", f"<sub>{record.versions}</sub>", ""])


def processor() -> str:
    """The name of this computer's processor, and its level if one is set."""
    level = find_level()
    return name_hardware() if level is None else f"{name_hardware()} as {level.name}"


def machine() -> str:
    """The processor, and the versions of what took part."""
    return f"{processor()}; {list_versions()}"


def write(name: str, body: str, document: Path = DOCUMENT) -> None:
    """Puts a section between its marks in the place of the one of its name, or at the end."""
    text, first, last = document.read_text(encoding="utf-8"), f"<!-- {name} -->", f"<!-- end of {name} -->"
    marked = f"{first}\n{body.strip()}\n{last}"
    if first in text and last in text:
        text = text[: text.index(first)] + marked + text[text.index(last) + len(last) :]
    else:
        text = f"{text.rstrip()}\n\n{marked}\n"
    document.write_text(text, encoding="utf-8")
