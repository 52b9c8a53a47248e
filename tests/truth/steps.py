"""Steps of models against measured ones and against aiconfigurator: docs/truth/steps.md.

    python -m tests.truth.steps [--render] [--processes 2]

plans every step and writes what is predicted beside what was published and what aiconfigurator says
(tests/truth/aiconfigurator.json, which `make aiconfigurator` writes). `--render` plans nothing and writes the page of
what is known.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.bench.experiments.pages import put
from tests.truth.aiconfigurator import FILE as ESTIMATES
from tests.truth.aiconfigurator import name_kind
from tests.truth.cases import DECODE, SYSTEMS, Step, list_steps
from tests.truth.merging import time_products_us
from tests.truth.models import TITLES
from tests.truth.planning import KINDS, Planned, plan_all
from tests.truth.published import NOTES, PUBLISHED, Published
from tests.truth.ratios import SPREAD_HEAD, format_table, is_within, spread

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "truth"
PAGE, DATA = FOLDER / "steps.md", FOLDER / "steps.json"
SYSTEM_TITLES = {
    "h100_sxm": "H100", "h200_sxm": "H200", "a100_sxm": "A100", "a100_40gb": "A100 40 GB", "l40s": "L40S"
}  # fmt: skip
FAR = 1.15
ALL_STEPS = (*(each.step for each in PUBLISHED), *list_steps())

Plans = dict[Step, Planned]
Estimates = dict[str, dict[str, Any]]


def find_ms(planned: Planned) -> float:
    """The plan with the cuts that others have: Megatron's, where there is more than one GPU."""
    return planned.megatron_ms or planned.ms


def list_measured(plans: Plans) -> list[tuple[Published, float]]:
    """Every published time, over what einc predicts of the same cuts."""
    return [(each, each.ms / find_ms(plans[each.step])) for each in PUBLISHED]


def list_compared(plans: Plans, estimates: Estimates) -> list[tuple[Step, float]]:
    """Every step that both predict: aiconfigurator's time over einc's, for the same cuts."""
    return [
        (step, estimates[step.key]["ms"] / find_ms(plans[step]))
        for step in list_steps()
        if not plans[step].problem and step.key in estimates
    ]


def tabulate_published(plans: Plans, estimates: Estimates) -> str:
    rows = []
    for each, ratio in list_measured(plans):
        planned, estimate = plans[each.step], estimates.get(each.step.key)
        rows.append(
            [_name(each.step), each.source.split(",")[0], f"{each.ms:.2f}", f"{find_ms(planned):.2f}", f"{ratio:.2f}",
             *([f"{estimate['ms']:.2f}", f"{each.ms / estimate['ms']:.2f}"] if estimate else ["", ""])]
        )  # fmt: skip
    head = ("step", "measured by", "measured ms", "einc", "measured / einc", "aiconfigurator",
            "measured / aiconfigurator")  # fmt: skip
    return format_table(head, rows, 2)


def tabulate_sources(plans: Plans, estimates: Estimates) -> str:
    """Spreads by source, of both."""
    rows = []
    for source in NOTES:
        mine = [(each, ratio) for each, ratio in list_measured(plans) if each.source == source]
        rows.append([source, "einc", *spread(ratio for _, ratio in mine).cells()])
        theirs = [each.ms / estimates[each.step.key]["ms"] for each, _ in mine if each.step.key in estimates]
        if theirs:
            rows.append([source, "aiconfigurator", *spread(theirs).cells()])
    return format_table(("measured by", "predicted by", *SPREAD_HEAD), rows, 2)


def list_nearer(plans: Plans, estimates: Estimates) -> str:
    """How often einc, and how often aiconfigurator, is nearer to what was published."""
    wins: defaultdict[str, int] = defaultdict(int)
    for each, ratio in list_measured(plans):
        if each.step.key in estimates:
            theirs = each.ms / estimates[each.step.key]["ms"]
            wins["einc" if max(ratio, 1 / ratio) <= max(theirs, 1 / theirs) else "aiconfigurator"] += 1
    total = sum(wins.values())
    return f"einc is nearer in {wins['einc']} of {total} steps, aiconfigurator in {wins['aiconfigurator']}."


def tabulate_compared(plans: Plans, estimates: Estimates, system: str) -> str:
    rows = []
    for step in list_steps():
        planned, estimate = plans[step], estimates.get(step.key)
        if step.system != system or planned.problem:
            continue
        cells = [f"{find_ms(planned):.2f}", f"{planned.ms:.2f}", f"{planned.low_ms:.2f} to {planned.high_ms:.2f}"]
        theirs = [f"{estimate['ms']:.2f}", f"{estimate['ms'] / find_ms(planned):.2f}"] if estimate else ["", ""]
        rows.append([_name(step, with_system=False), *theirs[:1], *cells, *theirs[1:]])
    head = ("step", "aiconfigurator, ms", "einc, Megatron's cuts", "einc, fastest", "its range",
            "aiconfigurator / einc")  # fmt: skip
    return format_table(head, rows)


def tabulate_spreads(plans: Plans, estimates: Estimates) -> str:
    """By GPU, kind of step, and number of GPUs."""
    groups: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for step, ratio in list_compared(plans, estimates):
        groups[SYSTEM_TITLES[step.system], step.kind, str(step.gpus)].append(ratio)
    rows = [[*key, *spread(ratios).cells()] for key, ratios in groups.items()]
    head = ("GPU", "step", "GPUs", "steps", "aiconfigurator / einc: median", "10% to 90%", "extremes")
    return format_table(head, rows, 2)


def tabulate_kinds(plans: Plans, estimates: Estimates) -> str:
    """Where both differ: what their times are made of."""
    rows = []
    for step, ratio in list_compared(plans, estimates):
        planned = plans[step]
        if is_within(ratio, FAR) or planned.ms < 0.9 * find_ms(planned):
            continue
        theirs: defaultdict[str, float] = defaultdict(float)
        for part, ms in estimates[step.key]["parts"].items():
            theirs[name_kind(part)] += ms
        kinds = planned.kinds or {}
        cells = [f"{kinds.get(kind, 0.0):.2f} / {theirs[kind]:.2f}" for kind in KINDS]
        rows.append([_name(step), f"{ratio:.2f}", *cells])
    return format_table(("step", "aiconfigurator / einc", *KINDS), rows)


def tabulate_merged() -> str:
    """Products of a layer of Llama 3.1 8B, 8 tokens, on H100, by einc's own times of kernels."""
    rows = []
    for gpus in (1, 2, 4, 8):
        apart, merged = (time_products_us("llama-3.1-8b", "h100-sxm", 8, gpus, each) for each in (False, True))
        rows.append([str(gpus), f"{apart:.1f}", f"{merged:.1f}", f"{(apart - merged) * 32 / 1e3:.2f}"])
    head = ("GPUs", "us a layer, each weight by itself", "q, k, v and gate, up merged", "ms a step")
    return format_table(head, rows, 0)


def describe_prompts(plans: Plans) -> str:
    """What einc expects of plans that are not cut as Megatron does."""
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for step, planned in plans.items():
        if step.kind != DECODE and planned.megatron_ms and step in list_steps():
            gains[SYSTEM_TITLES[step.system]].append(planned.megatron_ms / planned.ms)
    spans = [f"{min(found):.1f} to {max(found):.1f} on 8 {title}" for title, found in gains.items()]
    return f"Megatron's cuts over the fastest plan, prompts: {', '.join(spans)}."


def describe_frameworks(estimates: Estimates) -> str:
    """Whose kernels aiconfigurator has."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for step in list_steps():
        if step.key in estimates:
            found[SYSTEM_TITLES[step.system]].add(estimates[step.key]["framework"])
    return "; ".join(f"{title}: {', '.join(sorted(names))}" for title, names in found.items()) + "."


def write_data(plans: Plans) -> None:
    lines = ",\n".join(f" {json.dumps(step.key)}: {json.dumps(_round(plan.record()))}" for step, plan in plans.items())
    DATA.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def read_data() -> tuple[Plans, Estimates]:
    plans = json.loads(DATA.read_text(encoding="utf-8"))
    estimates = json.loads(ESTIMATES.read_text(encoding="utf-8"))
    return {step: Planned(**plans[step.key]) for step in ALL_STEPS}, estimates


def fill_page(page: str) -> str:
    """The page with the tables of what is known between its marks."""
    plans, estimates = read_data()
    page = put(page, "published", tabulate_published(plans, estimates))
    page = put(page, "sources", tabulate_sources(plans, estimates))
    page = put(page, "notes", "\n".join(f"- **{source}**: {note}." for source, note in NOTES.items()))
    page = put(page, "nearer", list_nearer(plans, estimates))
    page = put(page, "spreads", tabulate_spreads(plans, estimates))
    for system in SYSTEMS:
        page = put(page, f"compared {system}", tabulate_compared(plans, estimates, system))
    page = put(page, "prompts", describe_prompts(plans))
    page = put(page, "frameworks", describe_frameworks(estimates))
    page = put(page, "merged", tabulate_merged())
    return put(page, "kinds", tabulate_kinds(plans, estimates))


def _name(step: Step, with_system: bool = True) -> str:
    tokens = f"{step.batch} x {step.length}"
    what = f"a token for {tokens}" if step.kind == DECODE else f"a prompt of {tokens}"
    where = f"{step.gpus} {SYSTEM_TITLES[step.system]}" if with_system else f"{step.gpus} GPU{'s' * (step.gpus > 1)}"
    return f"{TITLES[step.model]}, {what}, {where}"


def _round(record: dict[str, Any]) -> dict[str, Any]:
    """To a microsecond."""
    return {
        name: _round(value) if isinstance(value, dict) else round(value, 3) if isinstance(value, float) else value
        for name, value in record.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.truth.steps")
    parser.add_argument("--render", action="store_true", help="plan nothing, write the page of what is known")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if not options.render:
        write_data(plan_all(ALL_STEPS, options.processes))
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
