"""What operators and the runtime's kernels must be under the definition oracle, for the tests of all families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from einc.core.intervals import Intervals
from einc.core.spec import FunctionSpec
from einc.ops.base import Operator
from einc.ops.wrapping import ReproducibleOperator
from tests.support.block_slices import slices
from tests.support.definition_oracle import Array, Concrete, corruptions, difference, fault, reachable, requests
from tests.support.kernel_pieces import run_kernel


def require_cuts(
    operator: Operator, arrays: Sequence[Array], sites: Iterable[int], concretes: Sequence[Concrete]
) -> None:
    """Every cut for these numbers of sites implements the operator, whatever computes its blocks."""
    expected = operator.reference(*arrays)
    for count in sites:
        for intervals in requests(operator, count):
            spec = operator.build_spec(intervals)
            assert len(spec.functions) == reachable(operator, intervals, count)
            for concrete in concretes:
                assert fault(operator, spec, arrays, expected, concrete) is None, intervals


def require_bits(plain: Operator, arrays: Sequence[Array]) -> None:
    """Reproducible kernels give each part the bits that it has in the whole."""
    operator = ReproducibleOperator(plain)
    (function,) = operator.build_spec(uncut(operator)).functions
    expected = run_kernel(operator, function, cut_out(arrays, function))
    for result, known, desc in zip(expected, operator.reference(*arrays), operator.outputs, strict=True):
        assert difference(result, known, desc.dtype) is None
    for intervals in requests(operator, 3):
        functions = operator.build_spec(intervals).functions
        for function in functions:
            results = run_kernel(operator, function, cut_out(arrays, function))
            for result, part, block in zip(expected, results, function.outputs, strict=True):
                assert part.tobytes() == np.ascontiguousarray(result[slices(block)]).tobytes(), intervals


def list_moved_bounds(operator: Operator, ends: Sequence[int] = (0, -1)) -> Iterator[tuple]:
    """What `corruptions` makes of the first and the last function of the cut along the most indices, and the function
    as it was."""
    intervals = max(requests(operator, 6), key=lambda chosen: sum(len(parts) > 1 for parts in chosen))
    spec = operator.build_spec(intervals)
    for at in {end % len(spec.functions) for end in ends}:
        for wrong, k, slab in corruptions(operator, spec, at):
            yield wrong, k, slab, spec.functions[at]


def uncut(operator: Operator) -> Intervals:
    return tuple(index.intervals(1) for index in operator.indices)


def cut_out(arrays: Sequence[Array], function: FunctionSpec) -> list[Array]:
    return [array[slices(block)] for array, block in zip(arrays, function.inputs, strict=True)]
