"""Plans of lookups, norms, rotations, caches, concatenation and pooling: proved and compared."""

from __future__ import annotations

import numpy as np
import pytest

from einc_runtime.errors import ValueFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.proof import prove
from tests.support.compiled_plans import PLACES, TOLERANCE, TRANSFORMER, compiled
from tests.support.plan_arrays import arrays_of, results
from tests.support.sampling import one_in


def run(bundle, **given):
    session = Session(bundle, executor=CpuExecutor(bundle, 2, poison=True))
    arrays = arrays_of(bundle, 3, places=PLACES) | given
    return arrays, results(session, arrays)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sites", "dtype"), one_in(2, [1, 3, 5, 8], TOLERANCE))
def test_plans_agree_with_references(sites, dtype):
    from einc.plan_reading.restore import compute_outputs
    from einc_runtime.cli.comparison import compare

    bundle = compiled(TRANSFORMER, sites, dtype)
    prove(bundle)
    arrays, found = run(bundle)
    comparison = compare(found, compute_outputs(bundle, arrays), TOLERANCE[dtype])
    assert comparison.holds, comparison


@pytest.mark.parametrize("sites", [1, 8])
def test_data_without_a_result_is_one_clear_error(sites):
    bundle = compiled(TRANSFORMER, sites)
    ids = np.arange(13) % 11
    ids[7] = 11
    with pytest.raises(ValueFault) as caught:
        run(bundle, ids=ids)
    assert caught.value.exit_code == 65
    assert "the index program at site" in caught.value.message
    assert "a position is 11; positions along this dimension are 0 to 10" in caught.value.message
    assert "it makes 'x' of the input 'ids'" in caught.value.message
    assert "kernel for x" in caught.value.where
    places = PLACES.copy()
    places[2] = 8  # a row of the cache, but of the other sequence
    with pytest.raises(
        ValueFault, match=r"the append .* a position is 8; positions in its sequence of the cache are 0"
    ):
        run(bundle, places=places)
