"""The five matrix chains at 1/8 scale on eight sites, against plain numpy with as many threads.

Both run in processes of their own, in f32, in pairs that alternate which goes first. The ratio of each pair cancels
what the machine does meanwhile; the table shows their median. The chains in numpy are the same products, in the same
order, each written to an array that exists already.

    python -m tests.bench.chains [--rounds N] [--scale N] [--sites N] [CHAIN ...]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHAINS = ("chain_a", "chain_b", "chain_c", "chain_d", "chain_e")
MODELS = Path(__file__).resolve().parents[2] / "models"
TARGET = 1.25
PAUSE = 0.4
"""Seconds between runs: an idle BLAS thread of the other process spins for a tenth of a second before it sleeps."""


def compile_chain(name: str, scale: int, sites: int):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    options = CompileOptions(machine="host", devices=sites, definitions=(("scale", str(scale)),), dtype="f32")
    return compile_model((MODELS / f"{name}.ein").read_text(), f"{name}.ein", options).bundle


def plan_runner(bundle, arrays, threads):
    """Executes the plan once per call and returns milliseconds; the first result has been compared with numpy's."""
    import numpy as np

    from runtime.executors.cpu import CpuExecutor
    from runtime.session import Session

    session = Session(bundle, executor=CpuExecutor(bundle, workers=threads))
    session.load_all(arrays)
    session.execute()
    expected = numpy_results(bundle, arrays)
    for tensor in session.outputs:
        error = np.abs(session.offload(tensor.name) - expected[tensor.name]).max() / np.abs(expected[tensor.name]).max()
        if not error < 1e-5:
            raise SystemExit(f"{bundle.model}: the plan's {tensor.name} is off by {error:.2g}")
    return session.execute


def numpy_results(bundle, arrays):
    values = dict(arrays)
    for operation in bundle.operations:
        left, right = (values[bundle.tensors[position].name] for position in operation.inputs)
        values[bundle.tensors[operation.outputs[0]].name] = left @ right
    return values


def numpy_runner(bundle, arrays):
    import numpy as np

    values = numpy_results(bundle, arrays)
    names = [[bundle.tensors[p].name for p in (*op.inputs, op.outputs[0])] for op in bundle.operations]
    products = [[values[name] for name in three] for three in names]

    def run():
        start = time.perf_counter()
        for left, right, result in products:
            np.matmul(left, right, out=result)
        return (time.perf_counter() - start) * 1e3

    return run


def serve(what: str, name: str, scale: int, sites: int) -> None:
    """The child process: one run for every line on standard input."""
    from runtime.draws import random_input

    bundle = compile_chain(name, scale, sites)
    if {operation.kernel for operation in bundle.operations} != {"contract"}:
        raise SystemExit(f"{name} is no chain of products")
    arrays = {tensor.name: random_input(tensor, 0) for tensor in bundle.tensors if tensor.kind != "value"}
    threads = int(os.environ["OPENBLAS_NUM_THREADS"])
    run = numpy_runner(bundle, arrays) if what == "numpy" else plan_runner(bundle, arrays, threads)
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(run(), flush=True)


class Child:
    def __init__(self, what: str, name: str, scale: int, sites: int, threads: int) -> None:
        count = str(threads)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
        command = [sys.executable, "-m", "tests.bench.chains", "--serve", what, name,
                   "--scale", str(scale), "--sites", str(sites)]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=MODELS.parent
        )
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"the {what} process of {name} ended early")

    def run(self) -> float:
        time.sleep(PAUSE)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, scale: int, sites: int, rounds: int, threads: int) -> list[tuple[float, float]]:
    """Pairs of milliseconds: the plan's and numpy's."""
    children = {what: Child(what, name, scale, sites, threads) for what in ("plan", "numpy")}
    order, pairs = random.Random(0), []
    for _ in range(rounds):
        both = {what: children[what].run() for what in order.sample(["plan", "numpy"], 2)}
        pairs.append((both["plan"], both["numpy"]))
    for child in children.values():
        child.close()
    return pairs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("chains", nargs="*", default=CHAINS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=int, default=8)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--serve", choices=["plan", "numpy"], help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.chains[0], options.scale, options.sites)
        return 0
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    print(f"chains at 1/{options.scale} scale, {options.sites} sites, {threads} threads, {options.rounds} pairs each")
    print(f"{'chain':<10}{'plan ms':>10}{'numpy ms':>10}{'ratio':>8}   target at most {TARGET}")
    worst = 0.0
    for name in options.chains:
        pairs = measure(name, options.scale, options.sites, options.rounds, threads)
        plan, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        worst = max(worst, ratio)
        print(f"{name:<10}{plan:>10.1f}{plain:>10.1f}{ratio:>8.3f}", flush=True)
    print(f"worst ratio {worst:.3f}: {'within' if worst <= TARGET else 'ABOVE'} the target")
    return 0


if __name__ == "__main__":
    sys.exit(main())
