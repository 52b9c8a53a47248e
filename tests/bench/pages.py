"""Makes docs/benchmarks.md, its figure and the pages of processors of the results that are kept: measures nothing.

    python -m tests.bench.pages

also prints what the README says of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.bench import figure, report
from tests.bench.cases import CASES, EIGHT, EXTRAS, MULTIPLYING, PEER_CASES, READING, SITES
from tests.bench.results import FOLDER, ROOT, Record, Results, read_all

PAGE = ROOT / "docs" / "benchmarks.md"
ORDER = {case.name: case for case in (*PEER_CASES, *CASES, *SITES, *EXTRAS)}
"""All cases, as the pages of processors have them."""


def tabulate(results: Results) -> str:
    """Ratios of a processor: the best variant of each program, plans for 8 sites, and what bounds a case."""
    shown = [
        (f"{group}: {label}", results.cases[name])
        for group, name, label in figure.list_cases()
        if name in results.cases
    ]
    dates = [record.date for _, record in shown]
    usual = max(sorted(set(dates)), key=dates.count)
    stamps = sorted({record.commit for _, record in shown if record.date == usual})
    lines = [f"### {results.title}", "", f"Measured {usual} ({', '.join(stamps)}), where no other date stands."
             f" [All figures](benchmarks/{results.path.stem}.md).", ""]  # fmt: skip
    heads = ["", *(peer.name for peer in figure.PEERS), "reading or multiplying alone", "8 sites to one"]
    lines += [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for label, record in shown:
        ratios = [_ratio(record, *peer.kinds) for peer in figure.PEERS]
        label += "" if record.date == usual else f", {record.stamp}"
        lines.append(f"| {' | '.join([label, *ratios, _ratio(record, READING, MULTIPLYING), _sites(record)])} |")
    return "\n".join(lines)


def _ratio(record: Record, *kinds: str) -> str:
    best = record.best(*kinds)
    if best is None or best.median is None:
        return ""
    return f"**{best.median:.2f}**" if best.median > 1 and READING not in kinds else f"{best.median:.2f}"


def _sites(record: Record) -> str:
    best = record.best(EIGHT)
    return "" if best is None or not best.median else f"{1 / best.median:.2f}"


def tell(results: Results) -> str:
    """In a sentence: in how many cases einc is faster than the fastest competitor, and by what."""
    kinds = tuple(kind for peer in figure.PEERS for kind in peer.kinds)
    names = [name for _, name, _ in figure.list_cases()]
    bests = [results.cases[name].best(*kinds) for name in names if name in results.cases]
    ratios = sorted(best.median for best in bests if best is not None and best.median)
    faster = sum(ratio <= 1 for ratio in ratios)
    middle = ratios[len(ratios) // 2]
    return (
        f"{results.title}: faster than the fastest competitor in {faster} of {len(ratios)} cases; einc takes "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} times as long, in the median {middle:.2f}"
    )


def list_missed(results: Results) -> Iterator[str]:
    """The targets that are missed by more than noise, as the page of the processor tells them."""
    for name, case in ORDER.items():
        for verdict in report.verdicts(case, results.cases[name]) if name in results.cases else ():
            if report.MISSED in verdict:
                yield f"- {results.title}: {case.title}, {case.dtype}: {verdict}"


def format_processor(results: Results) -> str:
    """The page of a processor, with all its figures."""
    lines = [f"# Benchmarks on {results.title}", "", "Made by `python -m tests.bench.pages`; "
             "[method.md](method.md) says who competes, and what the columns are.", ""]  # fmt: skip
    lines += [report.section(case, results.cases[name]) for name, case in ORDER.items() if name in results.cases]
    return "\n".join(lines).rstrip() + "\n"


def list_sections(panels: list[Results]) -> Iterator[tuple[str, str]]:
    """The parts of docs/benchmarks.md that come from results."""
    yield "essence", "\n".join(f"- {tell(results)}." for results in panels)
    missed = [line for results in panels for line in list_missed(results)]
    yield "missed", "\n".join(missed or ["None."])
    yield "ratios", "\n\n".join(tabulate(results) for results in panels)


def main() -> int:
    panels = read_all()
    figure.draw(panels)
    for results in panels:
        results.path.with_suffix(".md").write_text(format_processor(results), encoding="utf-8")
    for name, text in list_sections(panels):
        report.write(name, text, PAGE)
    print("\n".join(tell(results) for results in panels))
    print(f"{PAGE.relative_to(ROOT)} and {FOLDER.relative_to(ROOT)} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
