"""What reproducible plans cost: their time against that of other plans of the same models, paired and in turns.

python -m tests.bench.reproducible [--pairs 15] [--only decoding] [--write]

--write puts the figures into docs/reproducible.md; with --only, which takes a part of a model's name, the others stay.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Bundle
from tests.bench import report

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reproducible.md"
LAYERS = {"n_layers": 2, "d_model": 1024, "heads_q": 16, "heads_kv": 4, "d_head": 64, "d_ff": 2816, "vocab": 4096}
BLOCK = {key: value for key, value in LAYERS.items() if key not in ("n_layers", "vocab")}
CASES: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("two products, 512 tokens", "ffn", "f32", {"tokens": 512, "d_model": 1024, "d_ff": 3584}),
    ("block, 512 tokens", "llama_block", "f32", {**BLOCK, "seq_lens": [512]}),
    ("block, 512 tokens", "llama_block", "bf16", {**BLOCK, "seq_lens": [512]}),
    ("decoding, batch 1", "llama_decode", "f32", {**LAYERS, "batch": 1, "cache": 512}),
    ("decoding, batch 1", "llama_decode", "bf16", {**LAYERS, "batch": 1, "cache": 512}),
    ("decoding, batch 8", "llama_decode", "f32", {**LAYERS, "batch": 8, "cache": 512}),
    ("decoding, batch 8", "llama_decode", "bf16", {**LAYERS, "batch": 8, "cache": 512}),
)
"""What it is, the model, its element type, and its extents."""
START, END = "<!-- cost -->\n", "<!-- end of cost -->"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.reproducible", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15, help="runs of each of the two plans")
    parser.add_argument("--only", default="", help="the models with this in their name")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/reproducible.md")
    options = parser.parse_args(arguments)
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    known, _, after = rest.partition(END)
    lines = [
        f"`python -m tests.bench.reproducible --pairs {options.pairs}`",
        "",
        "| model | type | sites | predicted | measured, times as long | quartiles |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for what, model, dtype, sizes in CASES:
        for sites in (1, 4):
            key = f"| {what} | {dtype} | {sites} |"
            if options.only in what:
                lines.append(f"{key} {_compare(model, dtype, sizes, sites, options.pairs)}")
                print(lines[-1], flush=True)
            else:
                lines += [line for line in known.splitlines() if line.startswith(key)]
    lines += ["", f"<sub>{report.machine()}</sub>"]
    if options.write:
        PAGE.write_text(f"{before}{START}{chr(10).join(lines)}\n{END}{after}")
    return 0


def _compare(model: str, dtype: str, sizes: dict[str, object], sites: int, pairs: int) -> str:
    """The last three cells of a row."""
    text = (ROOT / "models" / f"{model}.ein").read_text()
    definitions = tuple((name, str(value)) for name, value in sizes.items())
    plans = [
        compile_model(
            text,
            f"{model}.ein",
            CompileOptions("host", sites, definitions, dtype=dtype, time_limit=5.0, reproducible=reproducible),
        ).bundle
        for reproducible in (False, True)
    ]
    sessions = [_load(plan) for plan in plans]
    ratios = []
    for pair in range(pairs + 2):
        took = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):
            start = time.perf_counter()
            sessions[which].execute()
            took[which] = time.perf_counter() - start
        if pair >= 2:
            ratios.append(took[1] / took[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    predicted = (plans[1].predicted_ms or 0.0) / (plans[0].predicted_ms or 1.0)
    return f"{predicted:.2f} | {middle:.2f} | {low:.2f} to {high:.2f} |"


def _load(plan: Bundle) -> Session:
    session = Session(plan, executor=CpuExecutor(plan))
    session.load_all({one.name: make_random_array(one, 0) for one in plan.tensors if one.kind != "value"})
    return session


if __name__ == "__main__":
    sys.exit(main())
