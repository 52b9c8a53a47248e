"""Triton's sources of index programs, run in numpy on the pieces of a cut, beside the kernels of the CPU."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from einc.core.spec import FunctionSpec
from einc.ops.base import Operator
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from tests.support.aggregate_cases import CASES as AGGREGATE_CASES
from tests.support.aggregate_cases import AggregateCase
from tests.support.block_slices import slices
from tests.support.definition_oracle import Array, difference, requests
from tests.support.index_cases import CASES, IndexCase
from tests.support.kernel_pieces import run_kernel
from tests.support.triton_in_numpy import Arena, run

ALL_CASES: dict[str, IndexCase | AggregateCase] = {**CASES, **AGGREGATE_CASES}
NAMES = [
    f"{dtype}-{name}" for name, case in ALL_CASES.items() for dtype in ("f32", "i32", "f16") if dtype in case.dtypes
]


def run_sources(operator: Operator, function: FunctionSpec, blocks: list[Array]) -> tuple[int, list[Array]]:
    """The status and the results of the launches, on strided operands."""
    arena = Arena()
    reads = [arena.place(block, 2) for block in blocks]
    writes = [
        arena.place(np.zeros(block.shape, desc.dtype.numpy()), 2, output=True)
        for block, desc in zip(function.outputs, operator.outputs, strict=True)
    ]
    views = ([as_layout(x) for x in arrays] for arrays in (reads, writes))
    call = operator.kernel
    sequence = builders.build_kernel(
        Invocation(call.name, dict(call.attributes), *views, list(function.inputs), list(function.outputs))
    )
    return run(sequence, arena), [arena.fetch(write) for write in writes]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", NAMES)
def test_sources_compute_what_the_kernels_of_the_cpu_do(name: str) -> None:
    dtype, _, word = name.partition("-")
    operator = ALL_CASES[word].operator(dtype)
    arrays = ALL_CASES[word].arrays(operator, zlib.crc32(name.encode()))
    for sites in (1, 3):
        intervals = list(requests(operator, sites))[0 if sites == 1 else -1]
        for function in operator.build_spec(intervals).functions[:2]:
            blocks = [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
            status, results = run_sources(operator, function, blocks)
            assert status == 0
            for result, expected, desc in zip(
                results, run_kernel(operator, function, blocks), operator.outputs, strict=True
            ):
                assert difference(result, expected, desc.dtype) is None


def test_a_position_outside_of_its_tensor_sets_the_status_word() -> None:
    operator = CASES["gather"].operator("f32")
    (function,) = operator.build_spec(tuple(index.intervals(1) for index in operator.indices)).functions
    for wrong in (9, -1):
        status, _ = run_sources(operator, function, [np.ones((9, 5), "f4"), np.array([0, 1, wrong, 2, 3, 4])])
        assert status != 0
