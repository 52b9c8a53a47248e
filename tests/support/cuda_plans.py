"""Plans for the CUDA executor on a fake driver, and what the CPU computes of them."""

from __future__ import annotations

from functools import cache

import numpy as np

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.plan_arrays import arrays_of, outputs_of, results

TINY = {"tokens": 13, "d_model": 11, "d_ff": 23}


@cache
def ffn(sites, dtype="f32"):
    return compiled((MODELS / "ffn.ein").read_text(), sites, dtype, **TINY)


@cache
def block(sites):
    text = (MODELS / "llama_block.ein").read_text()
    sizes = {"seq_lens": "[5, 9, 2]", "d_model": 48, "heads_q": 6, "heads_kv": 3, "d_head": 8, "d_ff": 40}
    return compiled(text, sites, "f32", **sizes)


@cache
def chain(sites, name="chain_a"):
    """With transfers both ways between any two sites, and aggregations."""
    return compiled((MODELS / f"{name}.ein").read_text(), sites, "f32", scale=300)


def cpu_results(bundle, arrays):
    return results(Session(bundle, executor=CpuExecutor(bundle, 1)), arrays)


def on_fake(bundle, devices=None, driver=None, **options):
    driver = driver or FakeDriver(len(bundle.memory))
    executor = CudaExecutor(bundle, devices, driver=driver, kernels=NumpyKernels(driver), **options)
    return Session(bundle, executor=executor), executor, driver


def agree(computed, expected):
    assert computed.keys() == expected.keys()
    for name, array in computed.items():
        np.testing.assert_allclose(array.astype("f8"), expected[name].astype("f8"), rtol=1e-4, atol=1e-5)


def agrees_with_the_cpu(bundle, executor):
    """In replays before and after a traced run."""
    arrays = arrays_of(bundle)
    expected = cpu_results(bundle, arrays)
    session = Session(bundle, executor=executor)
    session.load_all(arrays)
    for traced in (False, False, True, False):
        session.execute(trace=traced)
        agree(outputs_of(session), expected)


LAYOUTS = {
    "one each": lambda sites: None,
    "all on one": lambda sites: [0] * sites,
    "two devices": lambda sites: [site % 2 for site in range(sites)],
}
