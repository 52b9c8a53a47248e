"""Kernels on AMD's GPUs: modules of HIP, wavefronts of 64 threads, and products by hipBLASLt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.execution.cuda.hip_driver import HipError, HipRuntime, has_amd_gpus
from einc_runtime.kernels.cuda.cublas import CublasError
from einc_runtime.kernels.cuda.hipblaslt import HipProducts
from einc_runtime.kernels.cuda.modules import RuntimeModules, make_launch
from einc_runtime.kernels.gpu import GpuTarget
from einc_runtime.kernels.triton.gemm import Gemm
from tests.support.cuda_fake import FakeDriver
from tests.support.hip_fake import MEMORY, STREAM, HipBlasLt, HipLibrary


@pytest.mark.parametrize(("batch", "dtype", "turned"), [(1, "f2", (False, True)), (3, "f4", (True, False))])
def test_the_library_gets_the_arguments_of_a_product(batch, dtype, turned):
    m, n, k = 5, 7, 3
    rng = np.random.default_rng(batch)
    a, b, c = (rng.integers(-3, 4, (batch, size)).astype(dtype) for size in (m * k, n * k, m * n))
    kind = {"f2": "f16", "f4": "f32"}[dtype]
    lda, ldb = k if turned[0] else m, n if turned[1] else k
    product = Gemm(*turned, m, n, k, 0, lda, k * m, 0, ldb, n * k, 0, m, n * m, batch, kind, kind, -0.5)
    library, used = HipBlasLt(), []
    products = HipProducts(used.append, library)
    launch = products.launch(product, tuple(x.ctypes.data for x in (a, b, c)), MEMORY, 1)
    launch(STREAM)
    left = a.reshape(batch, m, k) if turned[0] else a.reshape(batch, k, m).swapaxes(1, 2)
    right = b.reshape(batch, k, n) if turned[1] else b.reshape(batch, n, k).swapaxes(1, 2)
    np.testing.assert_array_equal(c.reshape(batch, n, m).swapaxes(1, 2), -0.5 * left.astype("f8") @ right)
    products.launch(product, (0, 0, 0), MEMORY, 1)
    assert library.calls.count("hipblasLtMatmulAlgoGetHeuristic") == 1  # products that differ in addresses alone
    assert products.version(1) == "hipblasLt 1200"
    products.close()
    assert not library.held
    assert used == [1]


def test_products_without_an_algorithm_say_so():
    product = Gemm(False, False, 5, 7, 3, 0, 5, 0, 0, 3, 0, 0, 5, 0, 1, "f16", "f16", 1.0)
    library = HipBlasLt()
    library.proposals = 0
    products = HipProducts(lambda device: None, library)
    with pytest.raises(CublasError, match="no algorithm"):
        products.launch(product, (0, 0, 0), MEMORY, 0)
    with pytest.raises(CublasError, match="f64"):
        products.launch(replace(product, kind="f64", result="f64"), (0, 0, 0), MEMORY, 0)
    products.close()
    assert not library.held


def test_kernels_have_wavefronts_of_64_threads():
    library = HipLibrary(FakeDriver(1))
    runtime = HipRuntime(library)
    modules = RuntimeModules(runtime, runtime, HipError, has_attributes=False)
    module, function = modules.load(b"\x7fELF code", "work", 60 << 10)
    warp = GpuTarget.of("gfx942", 0).warp_size
    make_launch(modules, function, 9, 4 * warp, 60 << 10, (4096, 0, 0))(STREAM)
    assert library.launches == [(function, 9, 256, 60 << 10, STREAM, 4096)]
    with pytest.raises(HipError, match="status 1"):  # HIP counts threads of a grid in 32 bits
        make_launch(modules, function, 1 << 24, 4 * warp, 0, (4096, 0, 0))(STREAM)
    modules.unload(module)
    assert not library.modules


def test_flags_that_hip_does_not_know_are_refused():
    runtime = HipRuntime(HipLibrary(FakeDriver(2)))
    with pytest.raises(HipError):
        runtime.eventCreateWithFlags(1 << 20)
    with pytest.raises(HipError, match="101"):
        runtime.deviceEnablePeerAccess(0)  # its own


def test_gpus_of_amd_are_found_by_their_device_file(tmp_path):
    assert not has_amd_gpus(tmp_path)
    (tmp_path / "kfd").touch()
    assert has_amd_gpus(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert not has_amd_gpus(tmp_path)
