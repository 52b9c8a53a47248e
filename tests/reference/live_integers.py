"""Products of integers against PyTorch's own, and rows that PyTorch rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from einc_runtime.kernels.base import ANY_NUMBER, Invocation
from einc_runtime.kernels.registry import prepare


@pytest.mark.parametrize(("rows", "columns", "depth"), [(32, 40, 64), (17, 8, 4096), (200, 128, 776)])
def test_products_are_those_of_torch(rows: int, columns: int, depth: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, depth, generator=draw)
    values = torch.randint(-128, 128, (columns, depth), generator=draw, dtype=torch.int8)
    scales = torch.rand(columns, generator=draw)
    largest = x.abs().amax(-1)
    integers = torch.round(x * (127 / largest)[:, None]).to(torch.int8)
    expected = torch._int_mm(integers, values.t()).double() * (largest.double() / 127)[:, None] * scales.double()
    out = np.zeros((rows, columns), np.float32)
    operands = [one.numpy() for one in (x, largest, values, scales)]
    attributes = {"equation": "m k, n k -> m n"}
    kernel = prepare(Invocation("rounded_contract", attributes, operands, [out], repetitions=ANY_NUMBER))
    kernel.bind(np.zeros(kernel.scratch, np.uint8))()
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-6)
