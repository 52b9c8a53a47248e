"""Kernels from every provider: modules that use the fixture `provider` run once for each."""

from __future__ import annotations

import pytest

from einc_runtime.kernels.llvm import llvm


@pytest.fixture(scope="module", params=["numpy", "native"])
def provider(request):
    """Machine code for nothing, or for invocations of any size."""
    if request.param == "native" and not llvm.available():
        pytest.skip("llvmlite is not installed, or not for this processor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llvm, "SMALL", 0 if request.param == "native" else 1 << 62)
        yield request.param
