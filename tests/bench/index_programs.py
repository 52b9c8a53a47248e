"""Index programs on two cores beside PyTorch, eager and compiled, and oneDNN's own convolution, in rounds by turns.

python -m tests.bench.index_programs [--rounds 15] [--only conv] [--write]

Each competitor is a process of its own. A ratio is einc's time by the competitor's in the same round. --write puts the
figures into docs/index-programs-speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "index-programs-speed.md"
START, END = "<!-- figures -->\n", "<!-- end of figures -->"
PAUSE, CORES, REPEATS = 0.25, 2, 5
COMPETITORS = ("einc", "torch", "torch compiled", "onednn")

CONVOLUTION = """
dim n = 8
dim c = 64
dim y = 56
input x : f32[n, c, y, y]
weight k : f32[c, c, 3, 3]
output z[n, c, h = 56, w = 56] = x[n, i, h + r - 1, w + s - 1, outside = 0] * k[c, i, r, s]
"""
SOFTMAX = """
dim rows = 4096
dim d = 1024
input x : f32[rows, d]
output z = softmax(x)
"""
LAYERNORM = """
dim rows = 4096
dim d = 1024
input x : f32[rows, d]
weight a : f32[d]
weight b : f32[d]
output z = layernorm(x, a, b, eps = 1e-5)
"""
CUMSUM = """
dim rows = {rows}
dim d = {columns}
input x : f32[rows, d]
output z[rows, i] = sum[k <= i](x[rows, k])
"""
GATHER = """
dim rows = 32000
dim d = 128
dim tokens = 65536
input x : f32[rows, d]
input ids : i64[tokens]
output z[tokens, d] = x[ids[tokens], d]
"""
GROUPNORM = """
dim n = 8
dim c = 128
dim h = 56
dim w = 56
input x : f32[n, c, h, w]
weight a : f32[c]
weight b : f32[c]
output z = groupnorm(x, a, b, 8)
"""
SCAN = """
dim t = 2048
dim d = 1536
dim n = 16
input x : f32[t, d]
input delta : f32[t, d]
input a : f32[d, n]
input b : f32[t, n]
input c : f32[t, n]
input skip : f32[d]
output z = selective_scan(x, abs(delta), -abs(a), b, c, skip)
"""
SCAN_CHUNK = 16
"""Steps that PyTorch computes in one compiled function: a loop over all of them takes minutes to compile."""
SLOW = {"selective_scan": 1}
"""Runs of which the least time counts, where PyTorch takes seconds for one."""


def _scan_in_chunks(*, compiled: bool) -> Callable[..., Any]:
    """A selective scan in PyTorch: the coefficients of some steps together, and then step after step."""
    import torch

    def scan_chunk(h: Any, x: Any, delta: Any, a: Any, b: Any, c: Any) -> tuple[Any, Any]:
        decay, added = torch.exp(delta[:, :, None] * a), (delta * x)[:, :, None] * b[:, None, :]
        sums = []
        for step in range(SCAN_CHUNK):
            h = decay[step] * h + added[step]
            sums.append((h * c[step]).sum(-1))
        return h, torch.stack(sums)

    run = torch.compile(scan_chunk, fullgraph=True, dynamic=False) if compiled else scan_chunk

    def scan(x: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any) -> Any:
        h, parts, delta, a = torch.zeros_like(a), [], delta.abs(), -a.abs()
        for first in range(0, len(x), SCAN_CHUNK):
            h, part = run(h, *(y[first : first + SCAN_CHUNK] if y is not a else a for y in (x, delta, a, b, c)))
            parts.append(part)
        return torch.cat(parts) + skip * x

    return scan


def _torch_functions() -> dict[str, Callable[..., Any]]:
    import torch
    import torch.nn.functional as F

    return {
        "conv2d": lambda x, k: F.conv2d(x, k, padding=1),
        "softmax": lambda x: F.softmax(x, -1),
        "layernorm": lambda x, a, b: F.layer_norm(x, (1024,), a, b, 1e-5),
        "cumsum": lambda x: torch.cumsum(x, 1),
        "gather": lambda x, ids: F.embedding(ids, x),
        "groupnorm": lambda x, a, b: F.group_norm(x, 8, a, b, 1e-5),
    }


CASES = {
    "conv2d": ("64 to 64 channels, 3 x 3, 56 x 56, batch 8", "conv2d", CONVOLUTION),
    "softmax": ("[4096, 1024]", "softmax", SOFTMAX),
    "layernorm": ("[4096, 1024]", "layernorm", LAYERNORM),
    "cumsum of 64 rows": ("[64, 4096]", "cumsum", CUMSUM.format(rows=64, columns=4096)),
    "cumsum of 4096 rows": ("[4096, 64]", "cumsum", CUMSUM.format(rows=4096, columns=64)),
    "gather": ("65,536 rows of 128 from 32,000", "gather", GATHER),
    "groupnorm": ("8 groups of 16 channels, 56 x 56, batch 8", "groupnorm", GROUPNORM),
    "selective_scan": ("2,048 steps, 1,536 channels, 16 states", "selective_scan", SCAN),
}
"""What is computed, by which function of PyTorch, and the text of the model."""


def draw(name: str, text: str) -> dict[str, np.ndarray]:
    """The inputs and weights, which are the same in every process."""
    from einc.frontend import build

    rng, arrays = np.random.default_rng(len(text)), {}
    for tensor in build(f"model m\n{text}", f"{name}.ein").tensors:
        if tensor.kind.value == "value":
            continue
        if tensor.kind.value == "value":
            continue
        shape = tensor.desc.shape
        if tensor.desc.dtype.is_integer:
            arrays[tensor.name] = rng.integers(0, 32000, shape)
        else:
            arrays[tensor.name] = rng.standard_normal(shape, np.float32)
    return arrays


def prepare_einc(name: str) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    from einc.compiler import compile_model
    from einc.options import CompileOptions
    from einc_runtime.execution.cpu.executor import CpuExecutor
    from einc_runtime.execution.session import Session

    text = CASES[name][2]
    bundle = compile_model(f"model m\n{text}", f"{name}.ein", CompileOptions(machine="host", devices=1)).bundle
    session = Session(bundle, executor=CpuExecutor(bundle, CORES))
    session.load_all(draw(name, text))
    return session.execute, lambda: session.offload("z")


def prepare_torch(name: str, *, compiled: bool) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    import torch

    torch.set_num_threads(CORES)
    _, function_name, text = CASES[name]
    is_scan = function_name == "selective_scan"
    function = _scan_in_chunks(compiled=compiled) if is_scan else _torch_functions()[function_name]
    arrays = draw(name, text)
    order = [word for word in ("x", "ids", "k", "delta", "a", "b", "c", "skip") if word in arrays]
    given = [torch.from_numpy(arrays[word]) for word in order]
    if compiled and not is_scan:
        function = torch.compile(function, fullgraph=True, dynamic=False)
    result = None

    def run() -> None:
        nonlocal result
        with torch.inference_mode():
            result = function(*given)

    return run, lambda: result.numpy()


def prepare_onednn(name: str) -> tuple[Callable[[], object], Callable[[], np.ndarray]]:
    """The convolution alone, of operands that are already in the layouts that oneDNN likes best."""
    from einc_runtime.kernels.numpy import onednn
    from einc_runtime.kernels.numpy.onednn_convolution import ConvolutionPrimitive, ConvolutionShape, WindowSteps

    arrays = draw(name, CASES[name][2])
    x, k = arrays["x"], arrays["k"]
    z = np.zeros_like(x)
    onednn.limit_threads(CORES)
    layouts = [(array.shape, tuple(step // 4 for step in array.strides)) for array in (x, k, z)]
    primitive = ConvolutionPrimitive(ConvolutionShape("f32", *layouts, WindowSteps((1, 1), (1, 1), (1, 1), (1, 1))))
    inner = [np.zeros(size, np.uint8) for size in (*primitive.sizes, max(1, primitive.scratch))]
    primitive.copy(primitive.plain[0], x, primitive.used[0], inner[0])()
    primitive.copy(primitive.plain[1], k, primitive.used[1], inner[1])()
    back = primitive.copy(primitive.used[2], inner[2], primitive.plain[2], z)

    def fetch() -> np.ndarray:
        back()
        return z

    return primitive.convolve(*inner), fetch


def work(competitor: str, name: str, result: str) -> None:
    """A competitor's process: says that it is ready, and then the milliseconds of every run that it is asked for."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    try:
        if competitor == "einc":
            run, fetch = prepare_einc(name)
        elif competitor == "onednn":
            run, fetch = prepare_onednn(name)
        else:
            run, fetch = prepare_torch(name, compiled=competitor.endswith("compiled"))
    except ImportError as error:
        print(json.dumps({"absent": f"{error.name} is not installed"}), flush=True)
        return
    for _ in range(SLOW.get(name, 3)):
        run()
    np.save(result, np.asarray(fetch()))
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(SLOW.get(name, REPEATS)):
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e3)
        print(min(times), flush=True)


def measure(name: str, rounds: int, folder: Path) -> dict[str, list[float] | str]:
    """The times of each competitor by round, or why there are none."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    found: dict[str, list[float] | str] = {}
    processes: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, np.ndarray] = {}
    for competitor in COMPETITORS:
        if competitor == "onednn" and name != "conv2d":
            continue
        path = folder / f"{competitor.replace(' ', '-')}.npy"
        command = [sys.executable, "-m", "tests.bench.index_programs", "--work", competitor, name, str(path)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        said = json.loads(process.stdout.readline() or '{"absent": "its process ended early"}')
        if "absent" in said:
            found[competitor] = said["absent"]
            process.stdin.close()
            process.wait()
            continue
        processes[competitor], results[competitor] = process, np.load(path)
        found[competitor] = []
    first = results["einc"]
    for competitor, result in results.items():
        error = float(np.abs(result.reshape(first.shape) - first).max() / np.abs(first).max())
        if not error < 1e-4:
            raise SystemExit(f"{name}: {competitor} and einc differ by {error:.2g} of the largest value")
    order = random.Random(0)
    for _ in range(rounds):
        for competitor in order.sample(list(processes), len(processes)):
            time.sleep(PAUSE)
            process = processes[competitor]
            process.stdin.write("\n")
            process.stdin.flush()
            found[competitor].append(float(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return found


def describe(name: str, found: dict[str, list[float] | str]) -> list[str]:
    """The rows of a table."""
    lines, ours = [], found["einc"]
    for competitor, times in found.items():
        head = f"| {name}, {CASES[name][0]} | {competitor} |"
        if isinstance(times, str):
            lines.append(f"{head} - | {times} |")
            continue
        ratios = [a / b for a, b in zip(ours, times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        told = "" if competitor == "einc" else f"{middle:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"{head} {statistics.median(times):.2f} | {told} |")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.index_programs", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="runs of each competitor")
    parser.add_argument("--only", default="", help="the cases with this in their name")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/index-programs-speed.md")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work:
        work(*options.work)
        return 0

    import tempfile

    from tests.bench import report

    lines = ["| what | by | ms | einc's time by this one's |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            if options.only in name:
                lines += (rows := describe(name, measure(name, options.rounds, Path(folder))))
                print("\n".join(rows), flush=True)
    lines += ["", f"<sub>{report.machine()}</sub>"]
    if options.write:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
