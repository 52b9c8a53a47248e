"""GPU kernels of reproducible plans, run in numpy: parts have the bits of the whole, and results are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders, ordered_sums
from einc_runtime.kernels.triton.batched_pair import build_batched_pair
from einc_runtime.kernels.triton.epilogue import build_with_epilogue
from einc_runtime.kernels.triton.launches import KernelLaunch, as_layout
from tests.support.gpu_invocations import INVOCATIONS, array
from tests.support.reproducible_kernels import BF16, CALLS, compute_in_f64, require_equal_parts
from tests.support.triton_in_numpy import Arena
from tests.support.triton_in_numpy import run as run_in_numpy

TOLERANCE = {np.dtype("f2"): 2e-3, BF16: 1.6e-2, np.dtype("f4"): 1e-5, np.dtype("f8"): 1e-12}
FAST = ("product over two indices", "product of 16 bits", "experts of 16 bits", "sum in chunks", "softmax",
        "map of 16 bits", "attention of 16 bits", "attention in a window")  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that few terms have several chunks."""
    monkeypatch.setattr(ordered_sums, "PARALLEL_TERMS", 64)
    monkeypatch.setattr(ordered_sums, "PROGRAM_TERMS", 256)


def place(arena, array, output=False):
    """The array in an arena, laid out as it is: transposed, with gaps, or shifted by an element."""
    if array.strides[-1:] == (array.itemsize,) or array.ndim == 0:
        arena.end += array.itemsize * (not array.flags.c_contiguous)
        return arena.place(array, output=output)
    if array.T.flags.c_contiguous:
        turned = arena.place(array.T, output=output)
        return replace(turned, shape=array.shape, strides=turned.strides[::-1])
    return arena.place(array, step=2, output=output)


def run(call, reproducible=True):
    def on(inputs, outputs, in_blocks, out_blocks):
        arena = Arena()
        sources = [place(arena, x) for x in inputs]
        results = [place(arena, x, output=True) for x in outputs]
        views = [[as_layout(x) for x in arrays] for arrays in (sources, results)]
        attributes = {**call.attributes, **({"reproducible": True} if reproducible else {})}
        sequence = builders.build_kernel(Invocation(call.kernel, attributes, *views, in_blocks, out_blocks))
        assert run_in_numpy(sequence, arena) == 0
        return [arena.fetch(x) for x in results]

    return on


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in CALLS])
def test_parts_have_the_bits_of_the_whole_which_is_right(name):
    call = CALLS[name]
    found = require_equal_parts(call, run(call), 3 if name in FAST else 8)
    for one, exact in zip(found, compute_in_f64(call), strict=True):
        error = np.abs(one.astype("f8") - exact)
        assert error.max() <= TOLERANCE[one.dtype] * np.abs(exact).max()


@pytest.mark.parametrize("name", ["softmax", pytest.param("rmsnorm of long rows", marks=pytest.mark.slow)])
def test_other_kernels_have_other_bits_in_parts(name):
    """Else the test above would show nothing."""
    call = CALLS[name]
    with pytest.raises(AssertionError):
        require_equal_parts(call, run(call, reproducible=False), 12)


MOVING = ("move", "gather_", "index_")
"""How names of launches begin that write elements of a tensor, or numbers of an index, as they are."""


def test_only_products_are_fused_and_no_library_computes_them():
    for name, case in INVOCATIONS.items():
        marked = replace(case, attributes={**case.attributes, "reproducible": True})
        steps = marked.launches().steps
        assert all(isinstance(step, KernelLaunch) for step in steps), name
        computing = {step.source for step in steps if not step.source.name.startswith(MOVING)}
        is_product = case.kernel in ("contract", "quantized_contract", "expert_matmul") or name == "convolution"
        assert all(source.fuses == is_product for source in computing), name
        names = {source.name for source in computing if not source.fuses}
        assert not names & {step.source.name for step in case.launches().steps if isinstance(step, KernelLaunch)}


def test_products_of_reproducible_plans_are_not_combined_with_others():
    case = INVOCATIONS["contract"]
    marked = replace(case, attributes={**case.attributes, "reproducible": True}).invocation()
    result = replace(array("f16", 512, 1792), pointer=case.outputs[0].pointer + (1 << 24))
    then = Invocation("map", {"program": "t0 = relu x0", "indices": "t f -> t f"}, case.outputs, [result])
    assert build_with_epilogue(case.invocation(), then, 0) is not None
    assert build_with_epilogue(marked, then, 0) is None
    other = replace(marked, outputs=[replace(case.outputs[0], pointer=case.outputs[0].pointer + (1 << 22))])
    assert build_batched_pair(marked, other, 132) is None
