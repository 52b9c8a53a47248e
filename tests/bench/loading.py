"""Weights from a safetensors file: how long reading takes, against the same file mapped, in pairs that run in turns.

python -m tests.bench.loading [--pairs 15] [--mebibytes 256]
python -m tests.bench.loading --model [--pairs 15]        # a LLaMA of 125 million parameters, until its first result
python -m tests.bench.loading --model --cold              # the same without machine code of earlier processes

A file that is cut while it is mapped ends the process (SIGBUS). Both
ways copy every tensor to new memory, as a session does. The file is in the system's cache, where the difference shows.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from einc_runtime.dtypes import storage_dtype
from einc_runtime.execution.data.safetensors import SafetensorsFile, write_tensors
from einc_runtime.execution.data.weights import list_weights
from einc_runtime.plan.codec import read_bundle
from tests.bench import report
from tests.bench.cases import CASES, MODELS, PEER_CASES
from tests.bench.inputs import drawn
from tests.bench.measure import compile_arguments, run_einc

SHAPES = ((4096, 1024), (1024,), (1024, 2816), (300, 70))
"""Of the tensors, which are repeated until the file is full: f32."""

MODEL = "decode1f32"
"""The case whose model is loaded, unless another one is named."""
PHASES = ("reading and proving the plan, preparing kernels", "loading the weights", "the first run", "in all")

Array = np.ndarray[Any, np.dtype[Any]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loading", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--model", action="store_true", help="a whole model in a session, each time in a new process")
    parser.add_argument("--case", default=MODEL, help="a case of tests.bench with weights of floats")
    parser.add_argument("--cold", action="store_true", help="empty the cache of machine code before each process")
    parser.add_argument("--once", nargs=2, metavar=("PLAN", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.once:
        print(json.dumps(open_model(*options.once)))
        return 0
    if options.model:
        measure_model(options.case, options.pairs, cold=options.cold)
        print(report.machine())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.safetensors")
        targets = write_weights(path, options.mebibytes << 20)
        ratios = []
        for pair in range(options.pairs + 2):
            took = {way: _time(way, path, targets) for way in ((read, map_file) if pair % 2 else (map_file, read))}
            if pair >= 2:
                ratios.append(took[read] / took[map_file])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"reading takes {middle:.2f} times as long as mapping ({low:.2f} to {high:.2f}), {options.pairs} pairs")
    print(report.machine())
    return 0


def measure_model(name: str, repeats: int, *, cold: bool) -> None:
    """Prints seconds until a model has its first result, and of processors' time, which other programs change less.

    The caches are of this measurement alone: those of Python's modules and the times of libraries are there, as they
    are where einc is installed and has run once; machine code is where an earlier process ran, unless `cold`.
    """
    case = next(case for case in (*CASES, *PEER_CASES) if case.name == name)
    with tempfile.TemporaryDirectory() as folder:
        plan, file = str(Path(folder, "plan.bin")), str(Path(folder, "weights.safetensors"))
        run_einc(*compile_arguments(case, str(MODELS / f"{case.model}.ein"), case.sites, case.dtype, plan))
        tensors = list_weights(read_bundle(plan))
        with open(file, "wb") as stream:
            rng = np.random.default_rng(0)
            weights = {
                weight.stored or weight.name: (
                    weight.dtype, rng.random(weight.shape, np.float32).astype(storage_dtype(weight.dtype), copy=False)
                )
                for weight in tensors
            }  # fmt: skip
            write_tensors(stream, weights)
        count, size = (sum(getattr(array, kind) for _, array in weights.values()) for kind in ("size", "nbytes"))
        del weights
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "tests.bench.loading", "--once", plan, file]
        found = []
        for _ in range(repeats + 1):  # the first one fills the caches
            np.ones(2 * size, np.uint8)  # a virtual machine gets memory from its host when it is first used, slowly
            if cold:
                shutil.rmtree(Path(folder, "einc", "code"), ignore_errors=True)
            ran = subprocess.run(command, capture_output=True, check=True, env=environment)
            found.append(json.loads(ran.stdout))
    print(f"{case.title}: {count / 1e6:.0f} million values of {case.dtype}, in the system's cache, {repeats} processes")
    for phase in PHASES:
        walls, processors = ([one[phase][n] for one in found[1:]] for n in range(2))
        low, middle, high = statistics.quantiles(walls, n=4)
        print(
            f"{phase}: {middle:.2f} s ({low:.2f} to {high:.2f}, least {min(walls):.2f}), "
            f"{statistics.median(processors):.2f} s of processors"
        )


def open_model(plan: str, file: str) -> dict[str, tuple[float, float]]:
    """The seconds of each phase, and those of processors, in this process."""
    from einc_runtime.execution.cpu import executor  # noqa: F401 - imports are not counted
    from einc_runtime.execution.session import Session

    found: dict[str, tuple[float, float]] = {}
    before = time.perf_counter(), time.process_time()
    with Session(read_bundle(plan), "cpu") as session:
        opened = time.perf_counter(), time.process_time()
        session.load_weights(file)
        loaded = time.perf_counter(), time.process_time()
        session.load_all(drawn(session.bundle, weights=False))
        given = time.perf_counter(), time.process_time()
        session.execute()
        ran = time.perf_counter(), time.process_time()
        before_run = tuple(b + g - a for b, g, a in zip(before, given, loaded, strict=True))  # drawing is not counted
        starts, ends = (before, opened, given, before_run), (opened, loaded, ran, ran)
        for phase, start, end in zip(PHASES, starts, ends, strict=True):
            found[phase] = end[0] - start[0], end[1] - start[1]
    return found


def write_weights(path: Path, size: int) -> dict[str, Array]:
    """Fills a file with random tensors, and returns arrays for them."""
    rng, header, targets, place = np.random.default_rng(0), {}, {}, 0
    while place < size:
        shape = SHAPES[len(targets) % len(SHAPES)]
        target = np.zeros(shape, np.float32)
        header[f"w{len(targets)}"] = {
            "dtype": "F32", "shape": list(shape), "data_offsets": [place, place + target.nbytes]
        }  # fmt: skip
        place += target.nbytes
        targets[f"w{len(targets)}"] = target
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for target in targets.values():
            stream.write(rng.random(target.shape, np.float32).tobytes())
    return targets


def read(path: Path, targets: dict[str, Array]) -> None:
    file = SafetensorsFile(str(path))
    for name, target in targets.items():
        np.copyto(target, file.array(name))


def map_file(path: Path, targets: dict[str, Array]) -> None:
    file = SafetensorsFile(str(path))
    with path.open("rb") as stream:
        data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    start = len(data) - max(entry.end for entry in file.entries.values())
    for name, target in targets.items():
        entry = file.entries[name]
        np.copyto(target, data[start + entry.begin : start + entry.end].view("<f4").reshape(entry.shape))


def _time(way: Callable[[Path, dict[str, Array]], None], path: Path, targets: dict[str, Array]) -> float:
    new = {name: np.empty_like(target) for name, target in targets.items()}
    begin = time.perf_counter()
    way(path, new)
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
