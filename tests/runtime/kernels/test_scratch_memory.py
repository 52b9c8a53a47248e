"""Kernels that describe matrices to the unit for copies of tiles: the scratch memory that they get, and its cache."""

from __future__ import annotations

import ctypes
import json

import pytest

from einc_runtime.environment import KERNEL_CACHE
from einc_runtime.kernels.cuda import kernel_cache, triton_compile
from einc_runtime.kernels.cuda.kernels import CudaKernels
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.gpu import GpuTarget
from einc_runtime.kernels.triton.launches import SCRATCH, KernelLaunch, KernelSource, LaunchSequence

H100 = GpuTarget(0, "an H100", (9, 0), 132)
TEXT = "import triton\n\n\n@triton.jit\ndef k(x, y):\n    pass\n"
CALL = KernelLaunch(KernelSource("k", TEXT, ("f16", "f16"), (True, True)), 3, (1 << 20, SCRATCH))


class Modules:
    """Records launches with their parameters: two operands, and two that Triton adds."""

    def __init__(self):
        self.launched = []

    def use(self, device):
        pass

    def load(self, code, function, shared):
        return 1, 2

    def unload(self, module):
        pass

    def launch(self, function, grid, threads, shared, stream, parameters):
        values = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_uint64))
        held = [ctypes.cast(values[n], ctypes.POINTER(ctypes.c_uint64))[0] for n in range(4)]
        self.launched.append((grid, *held))


@pytest.fixture(params=[0, 200])
def scratch(request, monkeypatch, tmp_path):
    """Bytes for every program of what the compiler makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(KERNEL_CACHE, raising=False)
    monkeypatch.setattr(
        triton_compile, "compile_source",
        lambda source, architecture: KernelBinary(source.name, b"", 4, 0, "triton 9.9", request.param),
    )  # fmt: skip
    monkeypatch.setattr(triton_compile, "version", lambda: "triton 9.9")
    return request.param


def test_it_lies_behind_the_workspace_and_is_told_to_the_kernel(scratch):
    modules = Modules()
    kernel = CudaKernels([], modules, object()).prepare(LaunchSequence((CALL,), 512), H100)
    assert kernel.workspace == 512 + (768 if scratch else 0)  # of three programs, a multiple of 256
    kernel.bind(5 << 20, 0)(7)
    assert modules.launched == [(3, 1 << 20, 5 << 20, (5 << 20) + 512 if scratch else 0, 0)]


def test_its_size_is_kept_with_the_code_and_checked(scratch):
    place = kernel_cache.user_directory()
    CudaKernels([], Modules(), object()).prepare(LaunchSequence((CALL,), 512), H100)
    assert kernel_cache.find(CALL.source, "sm_90", [place], None).scratch == scratch
    (path,) = place.glob("*.json")
    note = json.loads(path.read_text())
    assert note["scratch"] == scratch
    for value in (-1, True, 1 << 20, "1"):
        path.write_text(json.dumps(note | {"scratch": value}))
        assert kernel_cache.find(CALL.source, "sm_90", [place], None) is None
    path.write_text(json.dumps({name: value for name, value in note.items() if name != "scratch"}))
    assert kernel_cache.find(CALL.source, "sm_90", [place], None).scratch == 0  # as earlier versions wrote it
