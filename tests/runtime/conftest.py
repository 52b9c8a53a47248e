"""Kernels from every provider: modules that use the fixture `provider` run once for each."""

from __future__ import annotations

import pytest

from einc_runtime.kernels.llvm import compiler


@pytest.fixture(scope="module", params=["numpy", "llvm"])
def provider(request):
    """Machine code for nothing, or for invocations of any size."""
    if request.param == "llvm" and not compiler.is_available():
        pytest.skip("llvmlite is not installed, or not for this processor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "MIN_COMPILED_ELEMENTS", 0 if request.param == "llvm" else 1 << 62)
        yield request.param
