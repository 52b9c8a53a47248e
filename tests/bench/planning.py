"""How long planning takes, how much memory it needs, and what it finds: one process per case.

    python -m tests.bench.planning [--case NAME]... [--write]

The time is that of the processor, so that other programs on the machine change it little; the matrix library has one
thread. `--write` puts the rows into docs/planning-speed.md; rows of cases that were not asked for stay as they are.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "planning-speed.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")

CROSS = """# Cross attention and the two products of a feed-forward network: 13 operators.
model cross
dim queries = 777
dim keys    = 6000
dim d_model = 2048
dim heads   = 16
dim d_head  = 128
dim d_ff    = 8192
input  x    : bf16[queries, d_model]
input  m    : bf16[keys, d_model]
weight w_q  : bf16[heads, d_head, d_model]
weight w_k  : bf16[heads, d_head, d_model]
weight w_v  : bf16[heads, d_head, d_model]
weight w_o  : bf16[d_model, heads, d_head]
weight up   : bf16[d_model, d_ff]
weight down : bf16[d_ff, d_model]
q[heads, queries, d_head] = x[queries, d_model] * w_q[heads, d_head, d_model]
k[heads, keys, d_head]    = m[keys, d_model] * w_k[heads, d_head, d_model]
v[heads, keys, d_head]    = m[keys, d_model] * w_v[heads, d_head, d_model]
s[heads, queries, keys]   = q[heads, queries, d_head] * k[heads, keys, d_head]
p = softmax(s * 0.0883)
o[queries, heads, d_head] = p[heads, queries, keys] * v[heads, keys, d_head]
r[queries, d_model]       = o[queries, heads, d_head] * w_o[d_model, heads, d_head]
a = x + r
y = a + matmul(gelu(matmul(a, up)), down)
output y
"""

LLAMA_70B = ("n_layers=80", "d_model=8192", "heads_q=64", "d_ff=28672")
LLAMA_405B = ("n_layers=126", "d_model=16384", "heads_q=128", "d_ff=53248")


@dataclass(frozen=True, slots=True)
class Case:
    """A model of `models/` with definitions, on a machine; `seconds` is what planning should take at most."""

    title: str
    model: str
    machine: str
    definitions: tuple[str, ...] = ()
    seconds: float | None = None


CASES = {
    "block-8": Case("LLaMA block, 8K tokens", "llama_block", "dgx-h100", ("seq_lens=[8192]",)),
    "block-16": Case("LLaMA block, 8K tokens", "llama_block", "dgx-h100x2", ("seq_lens=[8192]",), 5),
    "block-64": Case("LLaMA block, 8K tokens", "llama_block", "dgx-h100x8", ("seq_lens=[8192]",), 10),
    "block-72": Case("LLaMA block, 8K tokens", "llama_block", "gb200-nvl72", ("seq_lens=[8192]",), 10),
    "block-512": Case("LLaMA block, 8K tokens", "llama_block", "dgx-h100x64", ("seq_lens=[8192]",), 60),
    "cross-8": Case("cross attention", "cross", "dgx-h100"),
    "cross-16": Case("cross attention", "cross", "dgx-h100x2", (), 6),
    "moe-8": Case("mixture of experts", "moe", "dgx-h100"),
    "moe-16": Case("mixture of experts", "moe", "dgx-h100x2", (), 6),
    "8b-64": Case("LLaMA 8B, 32 layers", "llama", "dgx-h100x8", (), 30),
    "70b-72": Case("LLaMA 70B, 80 layers", "llama", "gb200-nvl72", LLAMA_70B, 60),
    "405b-72": Case("LLaMA 405B, 126 layers", "llama", "gb200-nvl72", LLAMA_405B, 90),
    "405b-decode-72": Case("a decode step of it", "llama_decode", "gb200-nvl72", LLAMA_405B, 90),
}


def work(case: Case) -> None:
    """Plans the case in this process, writes its page, and prints one line of JSON."""
    from einc.compiler import compile_model
    from einc.options import CompileOptions
    from einc.plan_reading.timing import read_plan_machine, time_plan
    from einc.report.document import explain
    from einc.report.html.page import write_plan_page
    from einc_runtime.cli.main import GARBAGE_THRESHOLD
    from einc_runtime.plan.codec import decode, encode

    text = CROSS if case.model == "cross" else (ROOT / "models" / f"{case.model}.ein").read_text(encoding="utf-8")
    started = time.process_time()
    definitions = tuple((name, value) for name, _, value in (entry.partition("=") for entry in case.definitions))
    options = CompileOptions(machine=case.machine, definitions=definitions)
    compiled = compile_model(text, f"{case.model}.ein", options)
    plan = encode(compiled.folded_bundle)
    planned = time.process_time()
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.set_threshold(GARBAGE_THRESHOLD)  # as the command does
    bundle = decode(plan, folded=True)
    timing = time_plan(bundle, read_plan_machine(bundle))
    document = explain(bundle, timing=timing)
    page = write_plan_page(bundle, document=document, timing=timing)
    least_ms = document["least_ms"]
    figures = {
        "sites": compiled.plan.sites,
        "seconds": planned - started,
        "mib": peak_kib / 1024,
        "ms": compiled.program.predicted_ms,
        "ratio": None if least_ms is None else document["predicted_ms"] / least_ms,
        "plan_mb": len(plan) / 1e6,
        "page_mb": len(page.encode("utf-8")) / 1e6,
        "page_seconds": time.process_time() - planned,
    }
    print(json.dumps(figures))


def measure(name: str) -> str:
    """The row of a case, from a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench.planning", "--work", name]
    printed = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    figures = json.loads(printed.splitlines()[-1])
    case = CASES[name]
    limit = "" if case.seconds is None else f"{case.seconds:g}"
    formats = {
        "seconds": ".1f",
        "mib": ".0f",
        "ms": ".3f",
        "ratio": ".2f",
        "plan_mb": ".1f",
        "page_mb": ".1f",
        "page_seconds": ".1f",
    }
    shown = {key: "" if figures[key] is None else format(figures[key], form) for key, form in formats.items()}
    shown["seconds"] += f" | {limit}"
    return f"| {case.title} | {case.machine}, {figures['sites']} | {' | '.join(shown.values())} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How long planning takes.")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    if options.work:
        work(CASES[options.work])
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    table, _, after = rest.partition(MARKS[1])
    kept = {tuple(line.split("|")[1:3]): line for line in table.splitlines()[2:] if line.startswith("| ")}
    rows = []
    for name in CASES:
        if options.case and name not in options.case:
            key = next((key for key in kept if _is_row_of(key, CASES[name])), None)
            rows += [] if key is None else [kept[key]]
            continue
        rows.append(measure(name))
        print(rows[-1], flush=True)
    if options.write:
        header = [
            "| model | machine, sites | CPU s | target | MiB | predicted ms | bound | plan, MB | page, MB | page, s |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        lines = "\n".join([*header, *rows])
        PAGE.write_text(f"{before}{MARKS[0]}\n{lines}\n{MARKS[1]}{after}", encoding="utf-8")


def _is_row_of(key: tuple[str, ...], case: Case) -> bool:
    return key[0].strip() == case.title and key[1].strip().startswith(f"{case.machine},")


if __name__ == "__main__":
    main()
