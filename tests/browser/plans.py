"""The plans whose pages are looked at in a browser."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.plan_reading.timing import read_plan_machine, time_plan
from einc.report.html.embedding import write_script_element
from einc_runtime.execution.trace import TaskRun, format_trace, make_task_events
from einc_runtime.plan.schema import Bundle
from tests.support.page_data import DATA, read_page_data

MODELS = Path(__file__).parents[2] / "models"
BLOCK_MEMORY = 230 << 20
"""Bytes of a site with which a block of LLaMA has to move data."""


@functools.cache
def plan_block(limited: bool = True) -> Bundle:
    """A block of LLaMA on the links of a DGX V100; with less memory, data moves."""
    options = CompileOptions(machine="dgx-v100", memory=BLOCK_MEMORY if limited else None)
    return compile_model((MODELS / "llama_block.ein").read_text(), "llama_block.ein", options).bundle


@functools.cache
def plan_layers() -> Bundle:
    """32 layers of LLaMA 8B on eight sites: 484 operators."""
    options = CompileOptions(machine="dgx-v100", selector="eindecomp")
    return compile_model((MODELS / "llama.ein").read_text(), "llama.ein", options).bundle


def trace_late(bundle: Bundle) -> bytes:
    """A trace in which everything takes a tenth longer than predicted."""
    times = time_plan(bundle, read_plan_machine(bundle)).times
    assert times is not None
    runs = [TaskRun(n, 1.1 * a, 1.1 * b) for n, (a, b) in enumerate(zip(times.starts, times.ends, strict=True))]
    return format_trace(make_task_events(bundle, runs), "measured", bundle.model).encode()


def expand_runs(column: Any) -> Any:
    """The values of a column that is written as values with their counts."""
    if not isinstance(column, dict):
        return column
    values, counts = column["runs"][::2], column["runs"][1::2]
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def repeat_tasks(page: str, times: int) -> str:
    """The page with all tasks of its plan so many times, one run after the other."""
    data = read_page_data(page)
    tasks = {name: expand_runs(column) for name, column in data["tasks"].items()}
    count, end, last = len(tasks["start"]), tasks["end"], sum(tasks["start"])
    for name in ("length", "kind", "site", "target", "label", "tensor", "bytes", "cause"):
        tasks[name] *= times
    tasks["start"] += [end - last + tasks["start"][0], *tasks["start"][1:]] * (times - 1)
    tasks["critical"] = [n + run * count for run in range(times) for n in tasks["critical"]]
    tasks["end"] = end * times
    data["tasks"] = tasks
    return DATA.sub(lambda _: write_script_element("data", data), page)
