"""Matrix chains in numpy: the same products in the same order, each written to an array that exists already."""

from __future__ import annotations

import numpy as np

from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import drawn, products


def prepared(bundle: Bundle):
    values, steps = drawn(bundle), products(bundle)
    for left, right, result in steps:
        values[result] = values[left] @ values[right]
    calls = [[values[name] for name in step] for step in steps]

    def run() -> None:
        for left, right, result in calls:
            np.matmul(left, right, out=result)

    return run, lambda: values[steps[-1][-1]]
