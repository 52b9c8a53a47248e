"""Probes of what the driver does itself: a capture, and copies of every kind. They run on the fake driver, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einc_runtime.kernels.gpu import GpuArray
from tests.gpu.probe_bench import Bench, Broken, host_bytes, speed

WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Bytes of a row."""
SIZE, SMALL = 64 << 20, 64 << 10
"""Bytes of a copy whose speed is told, and of one in a rehearsal."""
ENOUGH = 0.9
"""Of the kernel's speed: from there on CUDA's copy is taken."""


def capture(bench: Bench, size: int) -> str:
    """Two streams that fork and join: what one copies, the other copies on, and both parts come together."""
    driver, length = bench.driver, min(size, 1 << 20)
    values = np.random.default_rng(3).integers(0, 256, length, np.uint8)
    source, middle, left, right, result = bench.upload(values), *(bench.empty(length) for _ in range(4))
    other = driver.create_stream(bench.device)
    fork, join = (driver.create_event(bench.device, timing=False) for _ in range(2))
    half = length // 2

    def enqueue(stream: int) -> None:
        bench.copy(middle, source, length, stream)
        driver.record(fork, stream)
        driver.wait(other, fork)
        bench.copy(left, middle, length, other)
        driver.record(join, other)
        bench.copy(right, middle, length, stream)
        driver.wait(stream, join)
        bench.copy(result, left, half, stream)
        bench.copy(result + half, right + half, length - half, stream)

    took = bench.replay(enqueue)
    bench.require_equal(bench.download(result, values), values)
    return f"{1e3 * took:.1f} us for 5 copies of 1 MB"


def pinned(bench: Bench, size: int) -> str:
    driver = bench.driver
    there, back = driver.allocate_host(size), driver.allocate_host(size)
    pointer = bench.empty(size)
    values = np.random.default_rng(4).integers(0, 256, size, np.uint8)
    host_bytes(there, size)[:] = values
    up = bench.replay(lambda stream: bench.copy(pointer, there, size, stream))
    down = bench.replay(lambda stream: bench.copy(back, pointer, size, stream))
    bench.require_equal(host_bytes(back, size), values)
    return f"to the GPU {speed(size, up):.1f} GB/s, from it {speed(size, down):.1f} GB/s"


def peers(bench: Bench, size: int) -> str:
    """From the first GPU to the last one."""
    driver, last = bench.driver, bench.driver.device_count() - 1
    values = np.random.default_rng(5).integers(0, 256, size, np.uint8)
    source = bench.upload(values)
    if not last:
        target = bench.empty(size)
        took = bench.replay(lambda stream: bench.copy(target, source, size, stream))
        bench.require_equal(bench.download(target, values), values)
        return f"one GPU: {2 * speed(size, took):.0f} GB/s, read and written"
    if not driver.can_reach(0, last) or not driver.can_reach(last, 0):
        return f"GPUs 0 and {last} do not reach each other's memory: transfers go through the host's"
    for way in ((0, last), (last, 0)):
        driver.enable_peer(*way)
    target = driver.allocate(last, size)
    took = bench.replay(lambda stream: bench.copy(target, source, size, stream))
    bench.require_equal(bench.download(target, values, last), values)
    return f"GPU 0 to {last}: {speed(size, took):.1f} GB/s"


def rows(bench: Bench, size: int) -> str:
    """Rows of two arrays side by side, from one to a dense array: by CUDA's copy, and by the kernel that moves."""
    driver, found = bench.driver, {}
    values = np.random.default_rng(6).integers(0, 256, 2 * size, np.uint8)
    source, target, no_kernel = bench.upload(values), bench.empty(size), ""
    targets = driver.target(bench.device)
    for width in WIDTHS:
        height = size // width
        expected = values.reshape(height, 2 * width)[:, :width].reshape(-1)

        def by_copy(stream: int, width: int = width, height: int = height) -> None:
            driver.copy_async(target, width, source, 2 * width, width, height, stream)

        took = bench.replay(by_copy)
        bench.require_equal(bench.download(target, expected), expected)
        found[width] = [speed(size, took)]
        driver.fill_bytes(bench.device, target, 0, size)
        views = (
            GpuArray(pointer, (height, width // 2), (pitch, 2), "f16", bench.device)
            for pointer, pitch in ((source, 2 * width), (target, width))
        )
        try:
            kernel = bench.kernels.prepare_moves([next(views)], [next(views)], targets)
            launch = kernel.bind(bench.empty(kernel.workspace) if kernel.workspace else 0, 0)
        except Exception as error:
            no_kernel = f"; no kernel: {type(error).__name__}: {error}"[:200]
            continue
        took = bench.replay(launch)
        bench.require_equal(bench.download(target, expected), expected)
        found[width].append(speed(size, took))
    told = ", ".join(f"{width} B {' / '.join(f'{one:.0f}' for one in own)}" for width, own in found.items())
    least = least_width({width: (own[0], own[1]) for width, own in found.items() if len(own) == 2})
    return f"copy / kernel: {told}{no_kernel}" + (f"; MIN_ROW_BYTES: {least}" if not no_kernel else "")


def least_width(speeds: dict[int, tuple[float, float]]) -> str:
    """The width from which on a copy is about as fast as the kernel, as words."""
    least = None
    for width in sorted(speeds, reverse=True):
        copied, moved = speeds[width]
        if copied < ENOUGH * moved:
            break
        least = width
    return f"{least}" if least is not None else f"above {max(speeds, default=0)}"


def links(benches: Sequence[Bench], sizes: Sequence[int]) -> list[dict[str, object]]:
    """Copies between all pairs of GPUs that reach each other: GB/s one way, the other, and of both at once."""
    found: list[dict[str, object]] = []
    for one, first in enumerate(benches):
        for other, second in list(enumerate(benches))[one + 1 :]:
            driver = first.driver
            if not (driver.can_reach(one, other) and driver.can_reach(other, one)):
                found.append({"from": one, "to": other})
                continue
            driver.enable_peer(one, other)
            driver.enable_peer(other, one)
            found += [{"from": one, "to": other, **own} for own in _pair(first, second, sizes)]
    return found


def _pair(first: Bench, second: Bench, sizes: Sequence[int]) -> list[dict[str, float]]:
    driver, found = first.driver, []
    ends = [[bench.empty(max(sizes)) for _ in range(2)] for bench in (first, second)]
    for size in sizes:
        there = first.replay(lambda stream, n=size: first.copy(ends[1][0], ends[0][0], n, stream))  # type: ignore[misc]
        back = second.replay(lambda stream, n=size: second.copy(ends[0][1], ends[1][1], n, stream))  # type: ignore[misc]
        both = speed(2 * size, _both(first, second, ends, size))
        found.append({"bytes": size, "there": speed(size, there), "back": speed(size, back), "both": both})
    for bench, own in zip((first, second), ends, strict=True):
        for pointer in own:
            driver.free(bench.device, pointer)
    return found


def _both(first: Bench, second: Bench, ends: list[list[int]], size: int) -> float:
    """Milliseconds of a copy in each direction at once, in one graph over both GPUs."""
    driver = first.driver
    fork, join = (driver.create_event(bench.device, timing=False) for bench in (first, second))

    def enqueue(stream: int) -> None:
        driver.record(fork, stream)
        driver.wait(second.stream, fork)
        driver.use(second.device)
        second.copy(ends[0][1], ends[1][1], size)
        driver.record(join, second.stream)
        driver.use(first.device)
        first.copy(ends[1][0], ends[0][0], size, stream)
        driver.wait(stream, join)

    return first.replay(enqueue)


def require_same_after_copies(bench: Bench) -> None:
    """Raises Broken where a byte that is copied there and back changes."""
    values = np.arange(251, dtype=np.uint8)
    if not np.array_equal(bench.download(bench.upload(values), values), values):
        raise Broken("bytes that are copied to the GPU and back are others")
