"""What is reported of weights, against bytes counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.report.document import explain
from einc.report.terminal import format_overview
from einc.report.weights import describe_weights

MODEL = """
dim n = 7
dim m = 12
dim unread = 3
input x : f16[n, m]
weight w : f16[m, m]
weight v : f16[m]
weight z : f32[unread]
h = relu(matmul(x, w)) * v
output y = matmul(h, w) + v
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sites", [1, 2, 3, 5, 8])
def test_copies_and_bytes_are_those_of_the_buffers(sites: int) -> None:
    bundle = compile_model(MODEL, "m.ein", CompileOptions(machine="host", devices=sites)).bundle
    rows = {row["name"]: row for row in describe_weights(bundle)}
    assert set(rows) == {"w", "v", "z"}
    for number, tensor in enumerate(bundle.tensors):
        if tensor.kind != "weight":
            continue
        held = np.zeros((sites, *tensor.shape), int)
        for buffer in bundle.buffers:
            if buffer.tensor == number and buffer.role == "weight":
                box = tuple(map(slice, buffer.block.lower, buffer.block.upper))
                held[(buffer.site, *box)] = 1
        width = 4 if tensor.name == "z" else 2
        row, sums = rows[tensor.name], held.reshape(sites, -1)
        shared = sums * (sums.sum(axis=0) > 1)
        assert row["bytes"] == np.prod(tensor.shape) * width
        assert row["site_bytes"] == (sums.sum(axis=1) * width).tolist()
        assert row["replicated_bytes"] == (shared.sum(axis=1) * width).tolist()
        assert row["copies"] == pytest.approx(sums.sum() / np.prod(tensor.shape))
    text = format_overview(explain(bundle))
    assert "in 3 tensors" in text
    assert ("copies of" in text) == any(row["copies"] > 1 for row in rows.values())
