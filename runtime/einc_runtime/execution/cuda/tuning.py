"""Times the algorithms that a library proposes for the products of a plan, each in a graph of its own.

Data is that of the plan in its arenas, since a GPU that multiplies zeros takes less power and runs faster. Candidates
of a product run in turns, and medians count, so that a clock that changes meanwhile changes it for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from einc_runtime.execution.cuda.capture import capture_launches
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.resources import CudaResources
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.gpu import Alternatives, Launch

ROUNDS = 5
COPIES = 8
"""Launches in a graph: enough for the time of a graph's start not to count."""

MIN_GAIN = 0.01
"""An algorithm must be faster by this part than the usual one: less is noise."""


@dataclass(frozen=True, slots=True)
class TimedProduct:
    """Milliseconds of all alternatives in their order (infinite for one that fails), and which one is chosen."""

    alternatives: Alternatives
    ms: tuple[float, ...]
    chosen: int


def time_products(
    driver: Driver,
    products: Sequence[Alternatives],
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
) -> list[TimedProduct]:
    """The times of all products, in their order, as many as there is time for."""
    begin = perf_counter()
    found: list[TimedProduct] = []
    for number, product in enumerate(products):
        if perf_counter() - begin > seconds:
            break
        found.append(_time_product(driver, product))
        if progress is not None:
            progress(number + 1, len(products))
    return found


def _time_product(driver: Driver, product: Alternatives) -> TimedProduct:
    times: list[list[float]] = [[] for _ in product.launches]
    resources = CudaResources(driver)
    try:
        driver.use(product.device)
        stream = resources.create_stream(product.device)
        events = tuple(resources.create_event(product.device, timing=True) for _ in range(2))
        graphs = [_capture(driver, resources, launch, stream, product.device) for launch in product.launches]
        for turn in range(ROUNDS):
            for step in range(len(graphs)):
                place = (turn + step) % len(graphs)
                graph = graphs[place]
                if graph is not None:
                    times[place].append(_replay(driver, graph, stream, events))
    finally:
        error = resources.release()
    if error is not None:
        raise error
    ms = tuple(median(own) if own else math.inf for own in times)
    best = min(range(len(ms)), key=lambda place: ms[place])
    return TimedProduct(product, ms, best if ms[best] < (1 - MIN_GAIN) * ms[0] else 0)


def _capture(driver: Driver, resources: CudaResources, launch: Launch, stream: int, device: int) -> int | None:
    """A graph of several launches; None for an algorithm that the library refuses after all."""
    try:
        launch(stream)
        driver.synchronize(device)
    except CublasError:
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
