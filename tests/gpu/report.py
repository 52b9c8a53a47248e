"""The page that `make gpu-check` writes: where it ran, what was right, and how fast it was, against whom."""

from __future__ import annotations

from collections.abc import Mapping

from tests.gpu.findings import Findings, Record, holds
from tests.gpu.layouts import Layout
from tests.gpu.primitives import ROWS, TOLD
from tests.gpu.speed_page import describe_ceilings, describe_speed

LONGEST = 300
"""Characters of a reason."""
MAX_LISTED = 20
"""Tracebacks."""


def page(findings: Findings, facts: Mapping[str, str], seconds: float, raw: str = "") -> str:
    """The page in Markdown; `raw` is the file beside it with all samples."""
    title, origin = "Results on a GPU", "Written by `make gpu-check` (see [cuda.md](cuda.md))."
    if findings.rehearsal:
        title, origin = "Rehearsal without a GPU", "Kernels are numpy's, sizes are small, and times mean nothing."
    kernels = ", ".join(f"{name}: {value}" for name, value in findings.kernels.items())
    lines = [
        f"# {title}",
        "",
        f"{origin} Plans run on one GPU, however many sites they have, unless it is said."
        + (f" All samples, with clocks and power, are in `{raw}`." if raw else ""),
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in facts.items()),
        *([f"| kernels compiled before | {kernels} |"] if kernels else []),
        f"| {'the whole check took' if findings.finished else '**ended early**, after'} | {seconds:.0f} s |",
        "",
        *_probes(findings),
        *_correctness(findings),
        *_links(findings),
        *describe_ceilings(findings),
        *describe_speed(findings),
        *_in_full(findings),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _probes(findings: Findings) -> list[str]:
    if not findings.probes:
        return []
    lines = ["## Primitives, each alone", "", "| | | |", "| --- | --- | --- |"]
    for record in findings.probes:
        status = record["status"] if record["status"] != "failed" else "**failed**"
        lines.append(f"| {TOLD[record['probe']]} | {status} | {_cell(record['detail'])} |")
    if findings.sanitizer:
        status = findings.sanitizer["status"]
        status = "**failed**" if status == "failed" else status
        lines.append(f"| one case under compute-sanitizer | {status} | {_cell(findings.sanitizer['detail'])} |")
    return [*lines, "", *_row_width(findings)]


def _row_width(findings: Findings) -> list[str]:
    """What was measured for the narrowest rows of CUDA's copies, beside what plans are made with."""
    from einc_runtime.execution.cuda.step_kernels import MIN_COPY_ROW_BYTES

    told = next((own["detail"] for own in findings.probes if own["probe"] == ROWS and own["status"] == "ok"), "")
    _, _, least = told.partition("MIN_ROW_BYTES: ")
    if not least:
        return []
    return [
        f"CUDA copies rows about as fast as a kernel from {least} bytes on. Plans leave rows below "
        f"{MIN_COPY_ROW_BYTES} bytes to a kernel (`MIN_COPY_ROW_BYTES` in `step_kernels.py`).",
        "",
    ]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def _links(findings: Findings) -> list[str]:
    if not findings.links:
        return []
    lines = ["## Between GPUs", ""]
    if "problem" in findings.links:
        return [*lines, f"- not measured: {_cell(findings.links['problem'])[:LONGEST]}", ""]
    lines += ["GB/s of copies, in a graph.", "", "| GPUs | bytes | there | back | both at once |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for own in findings.links["links"]:
        pair = f"{own['from']}, {own['to']}"
        if "bytes" in own:
            told = " | ".join(f"{own[way]:.1f}" for way in ("there", "back", "both"))
            lines.append(f"| {pair} | {own['bytes']} | {told} |")
        else:
            lines.append(f"| {pair} | no access | | | |")
    return [*lines, ""]


def _correctness(findings: Findings) -> list[str]:
    if not (findings.checks or findings.unchecked or findings.lost or findings.left):
        return []
    right = len(findings.checks) - len(findings.wrong)
    lines = [
        "## Correctness",
        "",
        f"{right} of {len(findings.checks)} plans are right"
        + (f", and {len(findings.unchecked)} were not checked" if findings.unchecked else "")
        + ": within ten roundings of float64 (the largest error of an "
        "output, relative to its largest value), within as much of PyTorch in float64 where it has the model, and "
        "equal to the bit in two replays and a run task by task. Where two errors are given, the first is with a "
        "library's attention, if there is one, and the second with our own kernel. Sites are `aliased` where one GPU "
        "plays a GPU for each of them, `staged` where these do not reach each other's memory, and `spread` over all "
        "GPUs.",
        "",
        "| model | sites: largest error | PyTorch | allowed | kernels by |",
        "| --- | --- | --- | --- | --- |",
    ]
    for title in dict.fromkeys(record["case"] for record in findings.checks):
        own = [record for record in findings.checks if record["case"] == title]
        errors = ", ".join(f"{_sites(record)}: {_error(record)}" for record in own)
        theirs = [record["torch_error"] for record in own if record["torch_error"] is not None]
        providers = sorted({kernel.split(": ")[1] for record in own for kernel in record["kernels"]})
        torch = f"{max(theirs):.1e}" if theirs else ""
        lines.append(f"| {title} | {errors} | {torch} | {own[0]['tolerance']:g} | {', '.join(providers)} |")
    lines.append("")
    for title in dict.fromkeys(record["case"] for record in findings.checks if record.get("bits")):
        alike = [own for own in findings.checks if own["case"] == title and own.get("bits") and "unlike" not in own]
        lines.append(f"- {title}: the same bits on {', '.join(map(_sites, alike))} sites ({alike[0]['bits']})")
    for record in findings.wrong:
        lines.append(f"- **wrong**: {record['case']} on {_sites(record)} sites: {_reason(record)}")
    for why in dict.fromkeys(record["unchecked"] for record in findings.unchecked):
        cases = [f"{own['case']} on {_sites(own)}" for own in findings.unchecked if own["unchecked"] == why]
        lines.append(f"- **not checked**, {why}: {', '.join(cases)}")
    lines += [f"- **took the process with it**: {title}" for title in findings.lost]
    lines += [f"- not reached in time: {title}" for title in findings.left]
    if findings.own_attention:
        lines.append(f"- from then on without libraries for attention: {findings.own_attention}")
    expected = Layout.STAGED.value  # there, every pair of sites has a note
    told = (note for own in findings.checks if own.get("layout") != expected for note in own.get("notes", ()))
    lines += [f"- {note}" for note in dict.fromkeys(told)]
    return [*lines, ""] if lines[-1] else lines


def _sites(record: Record) -> str:
    layout = record.get("layout", Layout.ONE.value)
    return f"{record['sites']}" + (f" {layout}" if layout != Layout.ONE.value else "")


def _error(record: Record) -> str:
    if record["error"] is None:
        return "failed"
    errors = [own for own, _ in record.get("errors", {}).values()] or [record["error"]]
    return " / ".join(f"{error:.1e}" for error in errors) + ("" if holds(record) else " **wrong**")


def _reason(record: Record) -> str:
    if record["problem"]:
        return " ".join(str(record["problem"]).split())[:LONGEST]
    if not record["same_bits"]:
        return "runs differ"
    if "unlike" in record:
        return f"other bits than on {record['unlike']} sites, and the plan is reproducible"
    errors = record.get("errors") or {"": (record["error"], record["torch_error"])}
    told = [
        f"{f'{name}: ' if name else ''}error {error:.2g} (PyTorch {theirs})" for name, (error, theirs) in errors.items()
    ]
    return f"{'; '.join(told)}, allowed {record['tolerance']:g}"


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


def summary(findings: Findings) -> str:
    """A few lines for a terminal."""
    lines = [f"{len(findings.checks) - len(findings.wrong)} of {len(findings.checks)} plans are right"]
    lines += [f"broken: {own['probe']}: {own['detail']}" for own in findings.probes if own["status"] == "failed"]
    lines += [f"not checked: {own['case']} on {_sites(own)}: {own['unchecked']}" for own in findings.unchecked]
    lines += [f"wrong: {record['case']} on {record['sites']} sites: {_reason(record)}" for record in findings.wrong]
    lines += [f"took the process with it: {title}" for title in findings.lost]
    lines += [f"did not end: {title}" for title in findings.broken]
    lines += [f"not reached in time: {title}" for title in findings.left]
    for record in findings.benchmarks:
        lines.append(f"{record['name']}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in record["ms"].items()))
        lines += [f"    {name}: {problem}" for name, problem in record["problems"].items()]
    return "\n".join(lines)
