"""What ranks of a star can do, measured by themselves over MPI, as a machine file needs it.

    mpiexec ... python -m tests.testbed.star_speeds BYTES      one line of JSON, by rank 0

Ports are measured while all are busy in both directions, and cores while the ranks that share them compute, too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from einc_runtime.execution.ranks import mpi
from einc_runtime.execution.ranks.links import wait_for

ROUNDS = 40
SIDE = 256
"""The rows and columns of the matrices that are multiplied."""


def measure(links: mpi.MpiLinks, size: int) -> dict[str, Any]:
    """Bytes a second into every rank, from each of several others; seconds of a tiny message; operations and bytes a
    second of each rank, and the seconds that it takes to call numpy."""
    out, into = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    rates = []  # what else this computer does can only slow a port down, so the best of three counts
    for shift in (1, links.size // 2 or 1, links.size - 1):
        target, source = (links.rank + shift) % links.size, (links.rank - shift) % links.size
        for part in (size // 16, size):  # the first one lets TCP find its window
            links.meet()
            start = time.monotonic()
            handles = [links.receive(source, shift, into[:part]), links.send(target, shift, out[:part])]
            wait_for(links, handles)
            rate = part / (time.monotonic() - start)
        rates.append(rate)
    links.meet()
    turns = [time.monotonic()]
    if links.rank < 2:
        for turn in range(2 * ROUNDS):
            act = links.send if turn % 2 == links.rank else links.receive
            wait_for(links, [act(1 - links.rank, 9, into[:1000])])
            turns.append(time.monotonic())
    latency = float(np.median(np.diff(turns[::2]))) / 2 if links.rank < 2 else 0.0
    links.meet()
    left, right = np.ones((2, SIDE, SIDE), np.float32)
    product = _time(lambda: left @ right, 60)
    large = np.zeros(1 << 22, np.uint8)
    copied = _time(large.copy, 60)
    call = _time(lambda: left[0] + right[0], 2000)
    return {
        "rate": max(rates),
        "latency": latency,
        "flops": 2 * SIDE**3 / product,
        "bytes": 2 * large.size / copied,
        "call": call,
    }


def _time(function: Any, count: int) -> float:
    start = time.monotonic()
    for _ in range(count):
        function()
    return (time.monotonic() - start) / count


def main(size: str) -> None:
    links = mpi.connect()
    found = links.share(json.dumps(measure(links, int(size))).encode())
    if links.rank == 0:
        print(json.dumps([json.loads(one) for one in found]))
    links.close()


if __name__ == "__main__":
    main(sys.argv[1])
