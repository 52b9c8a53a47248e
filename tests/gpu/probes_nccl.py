"""A probe of NCCL: a GPU sends to itself in a graph; where there are several, a small plan runs with a rank on each.

The ranks are threads, so that no MPI is needed. Without NCCL, plans run in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from einc_runtime.errors import MissingFault
from einc_runtime.execution.cuda.cupy_nccl import CupyNccl
from einc_runtime.execution.cuda.driver import Driver
from einc_runtime.execution.cuda.nccl import Nccl, NcclMessage
from einc_runtime.kernels.gpu import Kernels
from tests.gpu.probe_bench import Absent, Bench, Broken, speed

SIZE = 1 << 20
"""Bytes of a message."""
MAX_RANKS = 4
TOLERANCE = 1e-3

Parts = Callable[[int], tuple[Driver, Kernels, Nccl]]
"""What a rank of a number has."""


def nccl(bench: Bench) -> str:
    try:
        library = CupyNccl(bench.driver)
    except MissingFault as fault:
        raise Absent(fault.message) from fault
    count = min(bench.driver.device_count(), MAX_RANKS)
    if count > 1:
        return f"NCCL {library.version()}, {run_ranks(count, _open)}"
    return f"NCCL {library.version()}, one GPU: {send_to_itself(bench, library)}"


def send_to_itself(bench: Bench, library: Nccl) -> str:
    """Through all calls that plans make: joining, a group in a capture, looking for errors, and the end."""
    values = np.random.default_rng(8).integers(0, 256, SIZE, np.uint8)
    source, target = bench.upload(values), bench.empty(SIZE)
    communicators = library.join(library.make_id(), 1, {bench.device: 0})
    messages = [NcclMessage(False, 0, source, SIZE), NcclMessage(True, 0, target, SIZE)]
    took = bench.replay(lambda stream: communicators.exchange(bench.device, messages, stream))
    communicators.check()
    bench.require_equal(bench.download(target, values), values)
    communicators.close()
    return f"{speed(SIZE, took):.1f} GB/s in messages of 1 MB to itself"


def run_ranks(count: int, parts: Parts) -> str:
    """A chain of products on so many ranks, each with a GPU, against the CPU."""
    from einc.compiler import compile_model
    from einc.data import find_folder
    from einc.options import CompileOptions
    from einc_runtime.execution.data.random_arrays import make_random_array
    from einc_runtime.execution.ranks.cuda_part import make_cuda_executor
    from einc_runtime.execution.session import Session
    from tests.support.thread_links import ThreadWorld

    options = CompileOptions("host", count, (("scale", "300"),), selector="random", dtype="f32")
    bundle = compile_model((find_folder("models") / "chain_a.ein").read_text(), "chain_a.ein", options).bundle
    arrays = {one.name: make_random_array(one, 9) for one in bundle.tensors if one.kind != "value"}

    def compute(session: Session) -> dict[str, Any]:
        session.load_all(arrays)
        session.execute()
        return {one.name: session.offload(one.name) for one in session.outputs}

    def run(links: Any) -> tuple[dict[str, Any], int]:
        driver, kernels, library = parts(links.rank)
        devices = [site % driver.device_count() for site in range(count)]
        executor = make_cuda_executor(bundle, links, devices, driver=driver, kernels=kernels, nccl=library)
        with Session(bundle, executor=executor) as session:
            return compute(session), executor.facts().messages

    with Session(bundle, backend="cpu") as session:
        expected = compute(session)
    (found, messages), *_ = ThreadWorld(count).run(run)
    for name, array in expected.items():
        error = float(np.abs(found[name] - array).max() / np.abs(array).max())
        if not error <= TOLERANCE:
            raise Broken(f"{count} ranks compute something else: {error:.1e} of the largest value")
    return f"{count} ranks: a plan with {messages} messages at rank 0"


def _open(rank: int) -> tuple[Driver, Kernels, Nccl]:
    from einc_runtime.execution.cuda.cupy_driver import CupyDriver
    from einc_runtime.kernels.cuda.kernels import open_kernels

    driver = CupyDriver()
    return driver, open_kernels(), CupyNccl(driver)
