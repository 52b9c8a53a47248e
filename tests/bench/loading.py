"""Weights from a safetensors file: how long reading takes, against the same file mapped, in pairs that run in turns.

python -m tests.bench.loading [--pairs 15] [--mebibytes 256]

A file that is cut while it is mapped ends the process (SIGBUS). Both
ways copy every tensor to new memory, as a session does. The file is in the system's cache, where the difference shows.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from einc_runtime.execution.data.safetensors import SafetensorsFile
from tests.bench import report

SHAPES = ((4096, 1024), (1024,), (1024, 2816), (300, 70))
"""Of the tensors, which are repeated until the file is full: f32."""

Array = np.ndarray[Any, np.dtype[Any]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loading", description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--mebibytes", type=int, default=256)
    options = parser.parse_args(arguments)
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
