"""The page that `make gpu-check` writes: where it ran, what was right, and how fast it was, against whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.cases import BENCHMARKS, MAX_HOST_US, MAX_RATIO, TOLERANCE, Benchmark

Record = Mapping[str, Any]
ONE, MANY, OWN = "einc", "einc, 8 sites", "einc, own attention"
LONGEST = 300
"""Characters of a reason."""
MAX_LISTED = 20
"""Tracebacks."""
STEPS = (
    "One run with every step between two events of its own, on the same streams, behind other runs so that the GPU "
    "does not wait for the host. The least is what the bytes of a step or its operations take on an H100."
)
NO_TIME = "there was no time for it"
RIVALS = ("torch eager", "torch compiled, CUDA graph", "jax")


@dataclass(slots=True)
class Findings:
    """Everything that workers reported.

    `lost` are cases that took the process with them, `broken` benchmarks that did or took too long, `left` what was
    not reached; `complaints` are what their processes said. `own_attention` is a case after whose loss no library
    computed attention any more.
    """

    checks: list[Record] = field(default_factory=list)
    benchmarks: list[Record] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    kernels: Record = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    own_attention: str = ""
    finished: bool = False
    rehearsal: bool = False

    def take(self, record: Record) -> None:
        """A benchmark's record, which replaces an earlier one of the same benchmark."""
        self.benchmarks = [one for one in self.benchmarks if one["name"] != record["name"]] + [record]

    @property
    def wrong(self) -> list[Record]:
        return [record for record in self.checks if not holds(record)]

    @property
    def passed(self) -> bool:
        """Whether something was checked, and all of it was right."""
        off = [record for record in self.benchmarks if not record["errors"] or not_accurate(record)]
        return bool(self.checks or self.benchmarks) and not (self.wrong or self.lost or off)


def holds(record: Record) -> bool:
    errors = [record[key] for key in ("error", "torch_error") if record[key] is not None]
    return not record["problem"] and bool(errors) and max(errors) <= record["tolerance"] and record["same_bits"]


def not_accurate(record: Record) -> list[str]:
    """Plans of a benchmark whose result is not PyTorch's, or that did not run."""
    far = [name for name, error in record["errors"].items() if not error <= 2 * TOLERANCE["f16"]]
    return far + [name for name in (ONE, MANY) if record["problems"].get(name, NO_TIME) != NO_TIME]


def page(findings: Findings, facts: Mapping[str, str], seconds: float) -> str:
    title, origin = "Results on a GPU", "Written by `make gpu-check` (see [cuda.md](cuda.md))."
    if findings.rehearsal:
        title, origin = "Rehearsal without a GPU", "Kernels are numpy's, sizes are small, and times mean nothing."
    kernels = ", ".join(f"{name}: {value}" for name, value in findings.kernels.items())
    lines = [
        f"# {title}",
        "",
        f"{origin} All plans run on one GPU, however many sites they have.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        *([f"| kernels compiled before | {kernels} |"] if kernels else []),
        f"| {'the whole check took' if findings.finished else '**ended early**, after'} | {seconds:.0f} s |",
        "",
        *_correctness(findings),
        *_speed(findings),
        *_in_full(findings),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _correctness(findings: Findings) -> list[str]:
    right = len(findings.checks) - len(findings.wrong)
    lines = [
        "## Correctness",
        "",
        f"{right} of {len(findings.checks)} plans are right: within ten roundings of float64 (the largest error of an "
        "output, relative to its largest value), within as much of PyTorch in float64 where it has the model, and "
        "equal to the bit in two replays and a run task by task.",
        "",
        "| model | sites: largest error | PyTorch | allowed | kernels by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for title in dict.fromkeys(record["case"] for record in findings.checks):
        own = [record for record in findings.checks if record["case"] == title]
        errors = ", ".join(f"{record['sites']}: {_error(record)}" for record in own)
        theirs = [record["torch_error"] for record in own if record["torch_error"] is not None]
        providers = sorted({kernel.split(": ")[1] for record in own for kernel in record["kernels"]})
        torch = f"{max(theirs):.1e}" if theirs else ""
        lines.append(f"| {title} | {errors} | {torch} | {own[0]['tolerance']:g} | {', '.join(providers)} |")
    lines.append("")
    for record in findings.wrong:
        lines.append(f"- **wrong**: {record['case']} on {record['sites']} sites: {_reason(record)}")
    lines += [f"- **took the process with it**: {title}" for title in findings.lost]
    lines += [f"- not reached in time: {title}" for title in findings.left]
    if findings.own_attention:
        lines.append(f"- from then on without libraries for attention: {findings.own_attention}")
    lines += [f"- {note}" for note in dict.fromkeys(n for record in findings.checks for n in record.get("notes", ()))]
    return [*lines, ""] if lines[-1] else lines


def _error(record: Record) -> str:
    if record["error"] is None:
        return "failed"
    return f"{record['error']:.1e}" + ("" if holds(record) else " **wrong**")


def _reason(record: Record) -> str:
    if record["problem"]:
        return " ".join(str(record["problem"]).split())[:LONGEST]
    if not record["same_bits"]:
        return "runs differ"
    return f"error {record['error']:.2g} (PyTorch {record['torch_error']}), allowed {record['tolerance']:g}"


def _speed(findings: Findings) -> list[str]:
    broken = [f"- **did not end**: {title}" for title in findings.broken]
    if not findings.benchmarks:
        return broken
    lines = [
        "## Speed",
        "",
        "f16; milliseconds for one computation, medians of interleaved turns; one launched after another, no waiting "
        f"in between. Targets: one site at most {MAX_RATIO} times the best of the others, {MAX_HOST_US:g} us of the "
        "host per replay, and 8 sites on the one GPU at most 1.15 times one site from 8K tokens up. Figures in bold "
        "miss theirs.",
        "",
        "| | einc | own attention | torch eager | torch compiled, CUDA graph | jax | einc / best | 8 sites / 1 "
        "| host us: 1, 8 | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for record in findings.benchmarks:
        lines.append(_row(known[record["name"]], record))
    lines.append("")
    for record in findings.benchmarks:
        title = known[record["name"]].title
        lines += [f"- {title}, {name}: {problem}" for name, problem in record["problems"].items()]
        lines += [f"- **wrong**: {title}, {name}" for name in not_accurate(record)]
        if not record["complete"]:
            lines.append(f"- {title}: measured one after another, not in turns")
        if not record["errors"]:
            lines.append(f"- **wrong**: {title}: compared with nothing")
    lines += broken
    lines += ["", "### Kernels", ""]
    for record in findings.benchmarks:
        lines.append(f"{known[record['name']].title}:")
        notes = [f"{name}: {note}" for name, note in record["notes"].items()]
        lines += ["", *(f"- {line}" for line in (*record["kernels"], *notes)), ""]
    if any(record.get("steps") for record in findings.benchmarks):
        lines += ["### Where the time goes", "", STEPS, ""]
    for record in findings.benchmarks:
        for name, table in record.get("steps", {}).items():
            lines += [f"{known[record['name']].title}, {name}:", "", *table, ""]
    return lines


def _in_full(findings: Findings) -> list[str]:
    """Tracebacks and last words, each once with all that ended so."""
    told: dict[str, list[str]] = {}
    for check in findings.checks:
        told.setdefault(check.get("traceback", ""), []).append(f"{check['case']} on {check['sites']} sites")
    for record in findings.benchmarks:
        for name, text in record.get("tracebacks", {}).items():
            told.setdefault(text, []).append(f"{record['name']}, {name}")
    for title, text in findings.complaints.items():
        told.setdefault(text, []).append(title)
    told.pop("", None)
    lines = ["## What failed, in full", ""] if told else []
    for text, titles in list(told.items())[:MAX_LISTED]:
        lines += [f"{'; '.join(titles)}:", "", "```text", *text.replace("```", "~~~").splitlines(), "```", ""]
    return [*lines, f"and {len(told) - MAX_LISTED} more"] if len(told) > MAX_LISTED else lines


def _row(benchmark: Benchmark, record: Record) -> str:
    ms = record["ms"]
    rivals = [ms[name] for name in RIVALS if name in ms]
    against = _target(ms[ONE] / min(rivals), MAX_RATIO) if ONE in ms and rivals else ""
    many = ""
    if ONE in ms and MANY in ms:
        ratio = ms[MANY] / ms[ONE]
        many = f"{ratio:.2f}" if benchmark.aim is None else _target(ratio, benchmark.aim, ".2f")
    us = [record["host_us"][name] for name in (ONE, MANY) if name in record["host_us"]]
    host = ", ".join(_target(one, MAX_HOST_US, ".0f") for one in us)
    error = max(record["errors"].values(), default=None)
    cells = [benchmark.title, *(f"{ms[name]:.3f}" if name in ms else "" for name in (ONE, OWN, *RIVALS))]
    return "| " + " | ".join([*cells, against, many, host, "" if error is None else f"{error:.1e}"]) + " |"


def _target(value: float, most: float, form: str = ".3f") -> str:
    """A figure, marked where it is above its target."""
    shown = f"{value:{form}}"
    return shown if value <= most else f"**{shown}**"


def summary(findings: Findings) -> str:
    """A few lines for a terminal."""
    lines = [f"{len(findings.checks) - len(findings.wrong)} of {len(findings.checks)} plans are right"]
    lines += [f"wrong: {record['case']} on {record['sites']} sites: {_reason(record)}" for record in findings.wrong]
    lines += [f"took the process with it: {title}" for title in findings.lost]
    lines += [f"did not end: {title}" for title in findings.broken]
    lines += [f"not reached in time: {title}" for title in findings.left]
    for record in findings.benchmarks:
        lines.append(f"{record['name']}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in record["ms"].items()))
        lines += [f"    {name}: {problem}" for name, problem in record["problems"].items()]
    return "\n".join(lines)
