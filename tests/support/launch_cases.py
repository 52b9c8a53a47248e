"""A decode step whose tasks are launched together, its inputs, and kernels that run launches part by part."""

from __future__ import annotations

from collections import Counter

import numpy as np

from einc.compiler import compile_model
from einc.logical.pins import Pin
from einc.options import CompileOptions
from einc_runtime.dtypes import storage_dtype
from einc_runtime.kernels import registry
from einc_runtime.kernels.gpu import Description, GpuKernel
from einc_runtime.kernels.triton.joint_launches import can_join
from einc_runtime.kernels.triton.kernels import TritonKernels
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake_kernels import NumpyKernels, view

SIZES = {
    "n_layers": 1, "batch": 3, "cache": 11, "d_model": 48, "heads_q": 6, "heads_kv": 3, "d_head": 16, "d_ff": 40,
    "vocab": 97,
}  # fmt: skip


def compile_step(sites, dtype):
    return compiled((MODELS / "llama_decode.ein").read_text(), sites, dtype, **SIZES)


def compile_cut_step(sites, cut_of_rows="replicated", **sizes):
    """A decode step whose heads and d_ff are cut, and all else is computed everywhere, or as `cut_of_rows` says."""
    cuts = {
        "*.[hnr]": cut_of_rows, "x*": cut_of_rows, "last_x": cut_of_rows, "logits": f"vocab/{sites}",
        **dict.fromkeys(("*.a", "*.[kv]", "*.rk", "*.?s"), f"heads_kv/{sites}"),
        **dict.fromkeys(("*.[qo]", "*.rq"), f"heads_q/{sites}"),
        **dict.fromkeys(("*.gate", "*.up", "*.f", "*.down"), f"d_ff/{sites}"),
    }  # fmt: skip
    pins = tuple(Pin(pattern, cut) for pattern, cut in cuts.items())
    settings = tuple((name, str(value)) for name, value in {**SIZES, **sizes}.items())
    options = CompileOptions(machine="dgx-h100", devices=sites, definitions=settings, dtype="f32", pins=pins)
    return compile_model((MODELS / "llama_decode.ein").read_text(), "model.ein", options).bundle


def compile_gathering_step(sites):
    """A decode step whose sums and norms are cut by rows, and gathered by the launches that make them."""
    return compile_cut_step(sites, f"tokens/{sites}")


def step_arrays(bundle, seed):
    rng = np.random.default_rng(seed)
    arrays = {}
    for tensor in bundle.tensors:
        if tensor.kind not in ("input", "weight"):
            continue
        if tensor.name == "ids":
            arrays[tensor.name] = rng.integers(0, 97, tensor.shape)
        elif tensor.name == "positions":
            arrays[tensor.name] = np.array([0, 4, 10])
        else:
            arrays[tensor.name] = (rng.standard_normal(tensor.shape) / 7).astype(storage_dtype(tensor.dtype))
    return arrays


def run_twice(session, arrays):
    """The results of a second step, one place earlier or at the same place, over the caches of the first."""
    session.load_all(arrays)
    session.execute()
    session.load("positions", np.array([0, 3, 9]))
    session.execute()
    return {tensor.name: session.offload(tensor.name).astype("f8") for tensor in session.outputs}


class Sequences(TritonKernels):
    """Returns launch sequences as they are."""

    def prepare(self, sequence, target):
        return sequence

    def versions(self):
        return {}

    def close(self):
        pass


class PartByPart(NumpyKernels):
    """Runs the parts of a launch one after the other, by numpy; what is not kept goes to memory of its own."""

    def __init__(self, driver):
        super().__init__(driver)
        self.joined = Counter()

    def prepare_launch(self, kind, parts, kept, target, flags=None):
        if kind in ("gated", "epilogue") or not can_join(parts, kept):
            return None
        self.joined[kind] += 1
        held = {}
        steps = []
        for part, is_kept in zip(parts, kept, strict=True):
            reads = [held[x.pointer] if x.pointer in held else view(x) for x in part.inputs]
            writes = [view(x) if is_kept else np.zeros(x.shape, storage_dtype(x.dtype)) for x in part.outputs]
            held |= {} if is_kept else {x.pointer: array for x, array in zip(part.outputs, writes, strict=True)}
            steps.append(registry.prepare(part.on(reads, writes), "numpy"))

        def run():
            with np.errstate(all="ignore"):
                for kernel in steps:
                    kernel.bind(np.empty(kernel.scratch, np.uint8))()

        def bind(workspace, status):
            work = self._await_flags(flags, target, run)
            return lambda stream: self.driver.kernel(stream, kind, work)

        return GpuKernel(bind, Description("numpy", "1", kind))
