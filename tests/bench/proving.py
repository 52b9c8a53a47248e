"""What proving a plan takes before its first run, beside reading and preparing it: medians of processor time.

python -m tests.bench.proving [--repeat 9] [--layers 14]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.cli.main import GARBAGE_THRESHOLD
from einc_runtime.execution import proved_plans
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.plan import codec
from tests.bench import report

ROOT = Path(__file__).parents[2]
SIZES = {"d_model": 512, "heads_q": 16, "d_ff": 1408, "batch": 8, "length": 64}
SITES = 8


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.proving", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--layers", type=int, default=14)
    options = parser.parse_args(arguments)
    definitions = tuple((name, str(value)) for name, value in (SIZES | {"n_layers": options.layers}).items())
    chosen = CompileOptions("host", SITES, definitions, selector="eindecomp", time_limit=20.0)
    data = codec.encode(compile_model((ROOT / "models" / "llama.ein").read_text(), "llama.ein", chosen).bundle)
    took: dict[str, list[float]] = {}

    def measure(name: str, action: Callable[..., object], *values: object, **named: object) -> None:
        begin = time.process_time()
        action(*values, **named)
        took.setdefault(name, []).append(time.process_time() - begin)

    gc.set_threshold(GARBAGE_THRESHOLD)  # as in the commands
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.repeat):
            with mock.patch.object(proved_plans, "user_directory", partial(Path, folder, str(number))):
                bundle = codec.decode(data)
                measure("reading", codec.decode, data)
                measure("the first proof", proved_plans.require_proof, bundle, decoded=True)
                measure("a proof that is remembered", proved_plans.require_proof, bundle, decoded=True)
                measure("preparing", CpuExecutor, bundle)
    whole = statistics.median(took["reading"]) + statistics.median(took["preparing"])
    print(f"{len(bundle.tasks):,} tasks, {len(data):,} bytes")
    for name, times in took.items():
        middle = statistics.median(times)
        print(f"{name}: {1000 * middle:.0f} ms, {100 * middle / whole:.0f}% of reading and preparing")
    print(report.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
