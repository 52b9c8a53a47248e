"""The part of the page about speed: against whom, and where the time goes."""

from __future__ import annotations

from statistics import median

from tests.gpu.cases import BENCHMARKS, MAX_HOST_US, MAX_RATIO, MIN_RATIO, Benchmark
from tests.gpu.findings import MANY, ONE, OWN, TUNED, Findings, Record, not_accurate
from tests.gpu.gpu_states import told

STEPS = (
    "One run with every step between two events of its own, on the same streams, behind other runs so that the GPU "
    "does not wait for the host. The least is what the bytes of a step or its operations take at this GPU's ceilings."
)
RIVALS = ("torch eager", "torch compiled, CUDA graph", "jax")


def describe_speed(findings: Findings) -> list[str]:
    broken = [f"- **did not end**: {title}" for title in findings.broken]
    if not findings.benchmarks:
        return broken
    lines = [
        "## Speed",
        "",
        "f16, decoding in bf16; milliseconds for one computation, medians of interleaved turns, with their spread "
        "(largest less smallest) of the median; one launched after another, no waiting in between. Targets: one site "
        f"at most {MAX_RATIO:.2f} times the best of the others, and at most 6.2 ms at 8K tokens; {MAX_HOST_US:g} us "
        "of the host per replay; 8 sites on the one GPU at most 1.15 times one site from 8K tokens up; products and "
        f"attention at least {MIN_RATIO:g} of the best that libraries reach with them alone. Figures in bold miss "
        "theirs.",
        "",
        "| | einc | tuned | own attention | torch eager | torch compiled, CUDA graph | jax | einc / best, tuned / best "
        "| 8 sites / 1 | host us: 1, 8 | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
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
    lines += _alone(findings)
    if any(record.get("steps") for record in findings.benchmarks):
        lines += ["### Where the time goes", "", STEPS, ""]
    for record in findings.benchmarks:
        for name, table in record.get("steps", {}).items():
            lines += [f"{known[record['name']].title}, {name}:", "", *table, ""]
    return lines


def _row(benchmark: Benchmark, record: Record) -> str:
    ms = record["ms"]
    rivals = [ms[name] for name in RIVALS if name in ms]
    ours = [ms[name] for name in (ONE, TUNED) if name in ms]
    against = ", ".join(_target(one / min(rivals), MAX_RATIO) for one in ours) if rivals else ""
    many = ""
    if ONE in ms and MANY in ms:
        ratio = ms[MANY] / ms[ONE]
        many = f"{ratio:.2f}" if benchmark.aim is None else _target(ratio, benchmark.aim, ".2f")
    us = [record["host_us"][name] for name in (ONE, MANY) if name in record["host_us"]]
    host = ", ".join(_target(one, MAX_HOST_US, ".0f") for one in us)
    error = max(record["errors"].values(), default=None)
    most = {ONE: benchmark.most_ms}
    cells = [benchmark.title]
    for name in (ONE, TUNED, OWN, *RIVALS):
        shown = _target(ms[name], most.get(name) or float("inf")) if name in ms else ""
        cells.append(shown + _spread(record.get("samples", {}).get(name, [])))
    return "| " + " | ".join([*cells, against, many, host, "" if error is None else f"{error:.1e}"]) + " |"


def _target(value: float, most: float, form: str = ".3f") -> str:
    """A figure, marked where it is above its target."""
    shown = f"{value:{form}}"
    return shown if value <= most else f"**{shown}**"


def _spread(samples: list[float]) -> str:
    if len(samples) < 2:
        return ""
    return f" ({100 * (max(samples) - min(samples)) / median(samples):.0f}%)" if median(samples) else ""


def _alone(findings: Findings) -> list[str]:
    """Our time for every product and attention, against the best that libraries took for it alone."""
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    rows = []
    for record in findings.benchmarks:
        for name, others in record.get("alone", {}).items():
            ours = record.get("step_ms", {}).get(name)
            if ours is None or not others:
                continue
            best = min(others, key=lambda who: float(others[who]))
            ratio = others[best] / ours if ours else 0.0
            shown = f"{ratio:.2f}" if ratio >= MIN_RATIO else f"**{ratio:.2f}**"
            rows.append(
                f"| {known[record['name']].title} | {name} | {ours:.4f} | {others[best]:.4f} {best} | {shown} |"
            )
    if not rows:
        return []
    head = ["| | step | ms | best alone | of its speed |", "| --- | --- | --- | --- | --- |"]
    return ["### Products and attention against libraries", "", *head, *rows, ""]


def describe_ceilings(findings: Findings) -> list[str]:
    own = findings.ceilings
    if not own:
        return []
    lines = ["## Ceilings of this GPU", ""]
    if "problem" in own:
        return [*lines, f"- not measured: {' '.join(own['problem'].split())[:300]}", ""]
    lines.append(
        f"{own['bytes'] / 1e12:.3g} TB/s to and from memory (the better of a copy and a sum of two arrays), and "
        f"{own['operations'] / 1e12:.4g} TFLOP/s of products in 16 bits."
    )
    states = [f"{name}: {told(state)}" for name, state in own.get("states", {}).items() if told(state)]
    return [*lines, *([""] if states else []), *(f"- {line}" for line in states), ""]
