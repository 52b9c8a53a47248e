"""Times the algorithms that there are for the products of a plan, each in a graph of its own.

Data is that of the plan in its arenas, since a GPU that multiplies zeros takes less power and runs faster. Candidates
of a product run in turns, and medians count, so that a clock that changes meanwhile changes it for all of them. What
computes something else than the usual way is not timed, so that no tuning can make a plan wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from einc_runtime.dtypes import ITEMSIZE, Array, storage_dtype
from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.capture import capture_launches
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.cuda.tuning import TunedProduct, Tuning, merge_tunings
from einc_runtime.kernels.gpu import Alternatives, Launch

TUNING_ROUNDS = 5
COPIES = 8
"""Launches in a graph: enough for the time of a graph's start not to count."""

CHECKED_BYTES = 4 << 20
"""At the beginning and at the end of a result: so many are compared."""

MIN_GAIN = 0.01
"""An algorithm must be faster by this part than the usual one: less is noise."""


@dataclass(frozen=True, slots=True)
class TimedProduct:
    """Milliseconds of all alternatives in their order (infinite for one that fails or computes something else), and
    which one is chosen."""

    alternatives: Alternatives
    ms: tuple[float, ...]
    chosen: int


def time_products(driver: Driver, products: Sequence[Alternatives], seconds: float) -> list[TimedProduct]:
    """The times of all products, in their order, as many as there is time for. Kernels are compiled before that."""
    _compile_all([job for product in products for job in product.jobs], seconds)
    begin = perf_counter()
    timed: list[TimedProduct] = []
    gains: dict[str, float] = {}
    for product in products:
        if perf_counter() - begin > seconds:
            break
        times = _time_product(driver, product, sum(gains.get(part, 0.0) for part in product.parts))
        gains[product.name] = times.ms[0] - times.ms[times.chosen]
        timed.append(times)
    return timed


def _compile_all(jobs: Sequence[tuple[Any, str]], seconds: float) -> None:
    """Compiles on all processors at once; what fails, or is not reached in this time, is compiled when it is timed."""
    if jobs:
        from einc_runtime.execution.cuda.precompile import compile_all
        from einc_runtime.kernels.cuda.kernel_cache import user_directory

        with suppress(MissingFault, OSError):
            compile_all(jobs, user_directory(), seconds=seconds, failed=[])


def collect_choices(timed: Sequence[TimedProduct]) -> Sequence[Tuning]:
    """The choices, by GPU and version of the library."""
    tunings: Sequence[Tuning] = ()
    for timed_product in timed:
        alternatives = timed_product.alternatives
        choice = TunedProduct(
            alternatives.records[timed_product.chosen] if timed_product.chosen else b"",
            timed_product.ms[timed_product.chosen],
            timed_product.ms[0],
        )
        tunings = merge_tunings(tunings, [Tuning(alternatives.gpu, alternatives.library, {alternatives.name: choice})])
    return tunings


def _time_product(driver: Driver, product: Alternatives, saved: float) -> TimedProduct:
    """`saved` are the milliseconds by which parts of the usual way are faster once they are tuned."""
    times: list[list[float]] = [[] for _ in product.launches]
    resources = CudaResources(driver)
    try:
        driver.use(product.device)
        stream = resources.create_stream(product.device)
        events = tuple(resources.create_event(product.device, timing=True) for _ in range(2))
        check = _ResultCheck(driver, product) if product.result is not None else None
        graphs = [_capture(driver, resources, launch, stream, product.device, check) for launch in product.launches]
        for turn in range(TUNING_ROUNDS):
            for step in range(len(graphs)):
                number = (turn + step) % len(graphs)
                graph = graphs[number]
                if graph is not None:
                    times[number].append(_replay(driver, graph, stream, events))
    finally:
        error = resources.release()
    if error is not None:
        raise error
    ms = tuple(median(times_of_way) if times_of_way else math.inf for times_of_way in times)
    best = min(range(len(ms)), key=lambda number: ms[number])
    return TimedProduct(product, ms, best if ms[best] < (1 - MIN_GAIN) * (ms[0] - saved) else 0)


class _ResultCheck:
    """Compares what ways compute with what the first one has computed: the beginning and the end of the result.

    A product may add to what is there, so that is put back before each of them.
    """

    def __init__(self, driver: Driver, product: Alternatives) -> None:
        assert product.result is not None
        self._driver, self._device, self._result = driver, product.device, product.result
        count, most = product.result.count, CHECKED_BYTES // ITEMSIZE[product.result.dtype]
        head = min(count, most)
        self._ranges = [(0, head)] + ([(max(head, count - most), count)] if count > head else [])
        self._before = self._read()
        self._expected: list[Array] | None = None

    def prepare(self) -> None:
        for (first, end), array in zip(self._ranges, self._before, strict=True):
            self._copy(self._address(first), array.ctypes.data, (end - first) * array.itemsize)

    def agrees(self) -> bool:
        """Whether the result is that of the first way; the first time it is taken as right."""
        results = self._read()
        if self._expected is None:
            self._expected = results
            return True
        return all(map(_are_close, results, self._expected))

    def _read(self) -> list[Array]:
        arrays = []
        for first, end in self._ranges:
            array = np.empty(end - first, storage_dtype(self._result.dtype))
            self._copy(array.ctypes.data, self._address(first), array.nbytes)
            arrays.append(array)
        return arrays

    def _address(self, element: int) -> int:
        return self._result.pointer + element * ITEMSIZE[self._result.dtype]

    def _copy(self, target: int, source: int, size: int) -> None:
        self._driver.copy(self._device, target, size, source, size, size, 1)


def _are_close(result: Array, expected: Array) -> bool:
    """Whether they differ by a few roundings of the largest value at most; sums may be added in another order.

    Where one of them overflows, the other may hold an infinity or none: only finite results are compared.
    """
    computed, right = result.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(right)
    if not np.isfinite(computed[finite]).all():
        return False
    largest = np.abs(right[finite]).max(initial=0.0)
    roundings = {2: 2.0**-5 if result.dtype.name == "bfloat16" else 2.0**-8}.get(result.itemsize, 2.0**-14)
    return bool(np.abs(computed[finite] - right[finite]).max(initial=0.0) <= roundings * largest)


def _capture(
    driver: Driver, resources: CudaResources, launch: Launch, stream: int, device: int, check: _ResultCheck | None
) -> int | None:
    """A graph of several launches; None for an algorithm that the library refuses after all, a kernel that cannot be
    compiled or loaded, and what computes something else."""
    if check is not None:
        check.prepare()
    try:
        launch(stream)
        driver.synchronize(device)
    except (CublasError, KernelFault, MissingFault):
        return None
    if check is not None and not check.agrees():
        return None

    def launch_copies() -> None:
        for _ in range(COPIES):
            launch(stream)

    return capture_launches(driver, resources, stream, launch_copies)


def _replay(driver: Driver, graph: int, stream: int, events: tuple[int, ...]) -> float:
    start, end = events
    driver.record(start, stream)
    driver.launch(graph, stream)
    driver.record(end, stream)
    driver.wait_on_host(end)
    return driver.elapsed_ms(start, end) / COPIES
