"""How close products with few rows come to this computer's read bandwidth: bytes of the matrix in each second.

    python -m tests.bench.bandwidth [--write]

A matrix that no cache holds is read by machine code that only adds, and by the product with one and with eight rows, in
turns: on one thread, and in halves on two.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.execution.cpu.thread_pool import RankedTaskGraph, run_tasks
from einc_runtime.kernels.base import Invocation, address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.registry import prepare
from tests.bench import report

LINES, DEPTH, SUMS = 1 << 16, 1 << 10, 8
KINDS = {"f32": np.dtype("f4"), "bf16": np.dtype(ml_dtypes.bfloat16)}
Run = Callable[[], None]


@compiler.compile_once
def _emit_reader() -> Any:
    """Arguments: an address, a number of f32 (a multiple of all lanes), and where their sums by lane go."""
    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    source, count, target = (e.argument() for _ in range(3))
    sums = [e.variable(e.number(0.0)) for _ in range(SUMS)]
    with e.loop(count, SUMS * LANES) as position:
        for n, place in enumerate(sums):
            value = e.load(source, e.b.add(position, I64(n * LANES)), "f32", None)
            e.b.store(e.b.fadd(e.b.load(place), value), place)
    for n, place in enumerate(sums):
        e.store(e.b.load(place), target, I64(n * LANES), "f32", None)
    return e.finish()


def read(part: Array) -> Run:
    target = np.empty(SUMS * LANES, np.float32)
    arguments = [address(part), part.nbytes // 4, address(target)]
    return compiler.CompiledCall(_emit_reader(), arguments, part, target)


def _multiply(part: Array, rows: int) -> Run:
    vectors = np.ones((rows, DEPTH), part.dtype)
    result = np.empty((rows, len(part)), part.dtype)
    kernel = prepare(Invocation("contract", {"equation": "t d, n d -> t n"}, [vectors, part], [result]))
    return kernel.bind(np.empty(kernel.scratch + 64, np.uint8))


def run_together(calls: Sequence[Run]) -> float:
    """Seconds until all have run, each on a thread of its own: those of the executor, which wake on different cores."""
    graph = RankedTaskGraph.of([()] * len(calls), [math.inf] * len(calls))
    return run_tasks(graph, len(calls), lambda _: lambda number: calls[number]())


def measure(kind: str, rounds: int) -> dict[str, tuple[float, ...]]:
    """Median GB/s on one thread and on two."""
    matrix = np.ones((LINES, DEPTH), KINDS[kind])
    ways: dict[str, Callable[[Array], Run]] = {
        "reading": read,
        "a product of 1 row": lambda part: _multiply(part, 1),
        "a product of 8 rows": lambda part: _multiply(part, 8),
    }
    calls = {(name, n): [way(part) for part in np.split(matrix, n)] for name, way in ways.items() for n in (1, 2)}
    times: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for own in calls.values():
        run_together(own)  # compiles, and takes memory
    for _ in range(rounds):
        for key, own in calls.items():
            times[key].append(matrix.nbytes / run_together(own) / 1e9)
    return {name: tuple(statistics.median(times[name, n]) for n in (1, 2)) for name in ways}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bandwidth", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks/costs.md")
    options = parser.parse_args()
    lines = ["## Products of few rows against the read bandwidth", ""]
    lines += [
        "`python -m tests.bench.bandwidth`",
        "",
        "| | 1 thread, GB/s | 2 threads, GB/s |",
        "| --- | ---: | ---: |",
    ]
    for kind in KINDS:
        for name, found in measure(kind, options.rounds).items():
            lines.append(f"| {kind}, {name} | {' | '.join(f'{rate:.1f}' for rate in found)} |")
    text = "\n".join([*lines, "", f"<sub>{report.machine()}</sub>"])
    print(text)
    if options.write:
        report.write("bandwidth", text)


if __name__ == "__main__":
    main()
