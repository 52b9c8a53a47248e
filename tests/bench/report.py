"""The figures of a case, for the terminal and for docs/benchmarks.md."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from einc_runtime.kernels.processor import name_processor, read_cpuinfo
from tests.bench.cases import MULTIPLYING, Case
from tests.bench.measure import Ratio, Row

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"


def table(case: Case, rows: list[Row]) -> list[tuple[str, str, str, str, str]]:
    """Name, median milliseconds, megabytes, seconds to the first result, and the ratio: its median and middle half."""
    ours, lines = rows[0], []
    for row in rows:
        held = f"{row.resident:.0f}", f"{row.first:.2f}"
        if row.absent:
            lines.append((row.competitor, "-", "-", "-", row.absent))
        elif row.trial is not None:
            lines.append((row.competitor, f"{row.trial:.1f}", *held, "dropped out"))
        else:
            lines.append((row.competitor, f"{row.median:.1f}", *held, "" if row is ours else str(Ratio.of(ours, row))))
    return lines


def verdicts(case: Case, rows: list[Row]) -> list[str]:
    """For every target and limit what was reached, against the best competitor of that kind; and what that one leaves
    to be reached, where it is known how long multiplying alone takes."""
    found = []
    alone = next((row for row in rows if row.competitor == MULTIPLYING and row.times), None)
    for kind, target in case.targets.items():
        rivals = [row for row in rows[1:] if row.times and row.competitor.startswith(kind)]
        if rivals and rows[0].times:
            best = min(rivals, key=lambda row: row.median)
            told = f"at most {target:.2f} times {best.competitor}: {_judge(Ratio.of(rows[0], best), target)}"
            found.append(told if alone is None else f"{told}; multiplying alone {Ratio.of(alone, best).median:.2f}")
    for row in rows:
        if row.times and row.competitor in case.limits:
            most = case.limits[row.competitor]
            told = _judge(Ratio.of(row, rows[0]), most)
            found.append(f"{row.competitor} at most {most:.2f} times {rows[0].competitor}: {told}")
    return found


def _judge(ratio: Ratio, target: float) -> str:
    state = "reached" if ratio.median <= target else "reached within 5%" if ratio.median <= target * 1.05 else "MISSED"
    return f"{ratio.median:.2f}, {state}"


def terminal(case: Case, rows: list[Row]) -> str:
    width = max(len(row.competitor) for row in rows) + 2
    lines = [f"\n{case.title}, {case.dtype} ({case.name})"]
    lines += [
        f"  {name:<{width}}{ms:>9} ms {held:>6} MB {first:>7} s   {ratio}"
        for name, ms, held, first, ratio in table(case, rows)
    ]
    lines += [f"  {verdict}" for verdict in verdicts(case, rows)]
    return "\n".join(lines)


def section(case: Case, rows: list[Row], command: str) -> str:
    lines = [f"<!-- {case.name} -->", f"### {case.title}, {case.dtype}", "", f"`{command}`", ""]
    lines += [f"| | ms | MB | first | {rows[0].competitor}'s time relative to it |"]
    lines += ["| --- | ---: | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(line)} |" for line in table(case, rows)]
    told = [f"- {verdict}" for verdict in verdicts(case, rows)]
    lines += ["", *told] if told else []
    return "\n".join([*lines, "", f"<sub>{machine()}</sub>", f"<!-- end of {case.name} -->"])


def processor() -> str:
    """The name of this computer's processor, and its level if one is set, with its family and its model: virtual
    machines shorten names."""
    name, found = name_processor(), read_cpuinfo()
    if "cpu family" not in found or "model" not in found:
        return name
    return f"{name} (family {found['cpu family']}, model {found['model']})"


def machine() -> str:
    """The processor, its cores, and the versions of what took part."""
    versions = [f"Python {platform.python_version()}"]
    peers = ("torch", "transformers", "jax", "onnxruntime", "openvino", "llama-cpp-python")
    for package in ("numpy", "onednn-cpu-gomp", "mkl", "llvmlite", *peers):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return f"{processor()}; {', '.join(versions)}"


def write(sections: dict[str, str]) -> None:
    """Puts each section in the place of the one of its name and of this processor, or at the end.

    Figures of another processor stay where they are.
    """
    text = DOCUMENT.read_text()
    for name, body in sections.items():
        label = name
        found = _find(text, name)
        if found is not None and processor() not in text[slice(*found)]:
            label = f"{name}, {processor()}"
            body = body.replace(f"<!-- {name} -->", f"<!-- {label} -->").replace(f"of {name} -->", f"of {label} -->")
            found = _find(text, label)
        before, after = (text.rstrip("\n") + "\n\n", "\n") if found is None else (text[: found[0]], text[found[1] :])
        text = before + body + after
    DOCUMENT.write_text(text)


def _find(text: str, label: str) -> tuple[int, int] | None:
    """Where a section begins and ends."""
    first, last = f"<!-- {label} -->", f"<!-- end of {label} -->"
    if first not in text or last not in text:
        return None
    return text.index(first), text.index(last) + len(last)
