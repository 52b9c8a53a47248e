"""Every operator on up to 8 sites: joining, aggregating and recomposing its blocks equals the reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
import pytest

from einc.core.intervals import count_reachable_sites
from einc.core.tensor import COMPUTED_TYPES
from einc.ops.base import Operator
from tests.support.block_slices import slices
from tests.support.definition_oracle import FEW, REST, corruptions, fault, one_number, random_array, requests
from tests.support.operator_cases import POSITIVE, all_cases, unary_and_binary

CASES = all_cases()


def data(name: str, operator: Operator) -> list[np.ndarray]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    positive = name.partition("-")[2] in POSITIVE
    return [random_array(desc, rng, positive) for desc in operator.inputs]


def check(name: str, numbers: Iterable[int]) -> None:
    operator = CASES[name]
    arrays = data(name, operator)
    expected = operator.reference(*arrays)
    for sites in numbers:
        reachable = count_reachable_sites(sites, [index.max_intervals for index in operator.indices])
        for intervals in requests(operator, sites):
            spec = operator.build_spec(intervals)
            assert len(spec.functions) == reachable
            assert fault(operator, spec, arrays, expected) is None, intervals


SCALAR = {f"{dtype}-{name}" for dtype in COMPUTED_TYPES for name in unary_and_binary(dtype)}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_every_factorization_implements_the_operator(name: str) -> None:
    """How an operator is cut depends neither on the type of its elements nor on its scalar function."""
    check(name, FEW if name.startswith("f32") and name not in SCALAR else one_number(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_sites_too(name: str) -> None:
    check(name, (*FEW, *REST, *((9, 12, 16, 24, 31, 36, 72) if name.startswith("f32") else ())))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("f32", "bool"))])
def test_one_bound_moved_by_one_is_noticed(name: str) -> None:
    operator = CASES[name]
    arrays = data(name, operator)
    expected = operator.reference(*arrays)
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for at in {0, len(spec.functions) - 1}:
        for wrong, k, slab in corruptions(operator, spec, at):
            if k is None:
                assert fault(operator, wrong, arrays, expected) is not None
                continue
            faults = [fault(operator, wrong, arrays, expected)]
            for extreme in (50, -50):  # so that it matters under max and min too that the slab is lost
                changed = list(arrays)
                changed[k] = changed[k].copy()
                changed[k][slices(slab)] = np.asarray(extreme).astype(changed[k].dtype)
                faults.append(fault(operator, wrong, changed, operator.reference(*changed)))
            assert any(faults), (intervals, wrong.functions[at])


def test_function_specifications_stand_in_lexicographic_order() -> None:
    operator = CASES["f32-matmul"]
    spec = operator.build_spec((((0, 3), (3, 7)), ((0, 9),), ((0, 2), (2, 5))))
    corners = [(function.outputs[0].lower, function.outputs[0].upper) for function in spec.functions]
    assert corners == [((0, 0), (3, 2)), ((0, 2), (3, 5)), ((3, 0), (7, 2)), ((3, 2), (7, 5))]
