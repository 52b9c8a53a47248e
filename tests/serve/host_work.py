"""What the host does for a step of eight texts, beside what it asks of the driver (make bench-serving).

A Llama of 32 narrow layers and 128,256 tokens is prepared on the stand-in for the driver of CUDA, as in
`tests/runtime`. Its graph is not run then, so that caches of the processor are as warm as beside a GPU, and the time in
the driver's functions is taken off.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from einc.generation.decoder_plans import DecoderSizes, DecoderSource, find_plans
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.sequence_batch import SequenceBatch, SequenceRequest
from einc_runtime.generation.slots import DecoderSlots
from einc_runtime.plan.schema import Bundle
from tests.serve.measure import BATCH, make_config
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels

LAYERS, VOCABULARY, STEPS = 32, 128_256, 100


class TimedDriver:
    """A driver, and the seconds that its functions took. If it `skips`, graphs that are launched do nothing."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver, self.seconds, self.skips = driver, 0.0, False

    def launch(self, *arguments: Any) -> None:
        if not self.skips:
            self._driver.launch(*arguments)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._driver, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return value(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        setattr(self, name, call)
        return call


def main() -> None:
    """Prints medians in microseconds: for all of a step, and for its parts."""
    config = json.dumps(make_config(32, 32, 2, LAYERS, VOCABULARY)).encode()
    options = CompileOptions("host", 1, selector="eindecomp", schedule="naive")
    with tempfile.TemporaryDirectory() as folder:
        source, cache = DecoderSource(config, "config.json", "model", None), PlanCache(Path(folder))
        for title, sampling in (("most likely", GREEDY), ("drawn", Sampling(0.8, top_k=40))):
            sizes = DecoderSizes(BATCH, 256, (), draws=sampling.temperature > 0)
            bundle = find_plans(source, options, cache, sizes, lambda _: None).step.bundle
            measure(bundle, sampling, title)


def measure(bundle: Bundle, sampling: Sampling, title: str) -> None:
    """Prints what a step takes beside the driver, of which the graph is not run."""
    driver = FakeDriver(1, memory=1 << 34)
    timed = TimedDriver(driver)
    executor = CudaExecutor(bundle, driver=timed, kernels=NumpyKernels(driver))  # type: ignore[arg-type]
    session = Session(bundle, executor=executor)
    session.load_weights("rand:0")
    slots = DecoderSlots(session)
    batch = SequenceBatch(slots)
    for slot in range(BATCH):
        batch.start(slot, SequenceRequest([slot + 1], 2 * STEPS, sampling, ignores_ends=True))
    batch.read()
    timed.skips = True
    whole, plan = [], []
    for _ in range(STEPS):
        driver.calls.clear()
        taken, spent, start = slots.times.decode_ms, timed.seconds, time.perf_counter()
        batch.step()
        seconds = time.perf_counter() - start - (timed.seconds - spent)
        whole.append(1e6 * seconds)
        plan.append(1e3 * (slots.times.decode_ms - taken) - 1e6 * (timed.seconds - spent))
    executor.close()
    print(f"{f'a step of {title} tokens, beside the driver':50} {statistics.median(whole):10.1f}")
    print(f"{'of which inputs, launch and results':50} {statistics.median(plan):10.1f}")


if __name__ == "__main__":
    main()
