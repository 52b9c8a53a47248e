"""The kernels of GPUs as the CUDA executor asks for them: launch sequences are built, compiled and bound.

Libraries are tried for attention before our own kernel: see `fused_attention.py`. Contractions may include the map
after them: see `triton/epilogue.py`. Every other kernel has one provider.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.cuda import cublaslt, kernel_cache
from einc_runtime.kernels.cuda.cublas import WORKSPACE, Cublas, ProductLibrary
from einc_runtime.kernels.cuda.cublaslt import EpilogueLibrary
from einc_runtime.kernels.cuda.fused_attention import AttentionLibraries
from einc_runtime.kernels.cuda.modules import CupyModules, LoadedModules, ModuleDriver, resolve_address
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.gpu import Description, GpuArray, GpuKernel, GpuTarget, Kernels, Launch
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.kernels import TritonKernels
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence


def open_kernels(places: Sequence[Path] | None = None) -> Kernels:
    """The kernels of this machine's GPUs. `places` are directories with compiled kernels, by default
    `kernel_cache`'s."""
    return CudaKernels(kernel_cache.directories() if places is None else tuple(places))


class CudaKernels(TritonKernels):
    """See `gpu.Kernels`. `modules`, `products` and `epilogues` are those of CUDA unless a test gives others."""

    def __init__(
        self,
        places: Sequence[Path],
        modules: ModuleDriver | None = None,
        products: ProductLibrary | None = None,
        epilogues: EpilogueLibrary | None = None,
    ) -> None:
        super().__init__()
        self._modules = LoadedModules(places, modules if modules is not None else CupyModules())
        self._own_products = products
        self._epilogues: EpilogueLibrary | None = epilogues
        self._epilogues_wanted = epilogues is None and products is None
        self._with_epilogues = False  # whether some kernel has one
        self._notes: list[str] = []
        self._cublas = ""
        self._libraries = AttentionLibraries()

    def prepare_kernel(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel:
        if invocation.name == "attention":
            fused = self._libraries.prepare(invocation, target)
            if fused is not None:
                return fused
        return super().prepare_kernel(invocation, target)

    def versions(self) -> Mapping[str, str]:
        compiler = self._modules.compiler
        found = {"triton": compiler.removeprefix("triton ")} if compiler else {}
        found |= self._libraries.versions
        if self._cublas:
            found["cublas"] = self._cublas
        return found

    @property
    def notes(self) -> Sequence[str]:
        return (*self._libraries.notes, *self._notes)

    def give_up(self, reason: str) -> bool:
        """Gives up what may have caused the failure: libraries for attention before epilogues, if it could be
        either."""
        own = "cublasLt" in reason
        return (not own and self._libraries.give_up(reason)) or self._give_up_epilogues(reason)

    def _give_up_epilogues(self, reason: str) -> bool:
        if self._epilogues is None or not self._with_epilogues:
            return False
        self._epilogues, self._with_epilogues = None, False
        self._notes.append(f"products of matrices take no epilogues with them: {' '.join(reason.split())[:200]}")
        return True

    def close(self) -> None:
        """Closes everything, also after errors, such as a lost device; raises the first error at the end."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._libraries.close)
            for library in (self._own_products, self._epilogues):
                if library is not None:
                    stack.callback(library.close)
            stack.callback(self._modules.close)

    @property
    def _products(self) -> ProductLibrary:
        if self._own_products is None:
            self._own_products = Cublas(self._modules.driver.use)
        return self._own_products

    def has_epilogues(self, sequence: LaunchSequence, target: GpuTarget) -> bool:
        if self._epilogues_wanted:
            self._epilogues, self._epilogues_wanted = cublaslt.open_if_available(self._modules.driver.use), False
        found = self._epilogues
        products = [step for step in sequence.steps if isinstance(step, Gemm) and step.epilogue]
        fits = found is not None and all(found.fits(product, target.device) for product in products)
        self._with_epilogues |= fits
        return fits

    def prepare(self, sequence: LaunchSequence, target: GpuTarget) -> GpuKernel:
        """Compiles all sources. Modules are loaded when the kernel is bound."""
        calls = [step for step in sequence.steps if isinstance(step, KernelLaunch)]
        binaries = {step.source.key: self._modules.binary(step.source, target.architecture) for step in calls}
        products = any(isinstance(step, Gemm) for step in sequence.steps)
        workspace = sequence.scratch + (WORKSPACE if products else 0)

        def bind(memory: int, status: int) -> Launch:
            launches = [
                self._launch_product(step, memory, sequence.scratch, target)
                if isinstance(step, Gemm)
                else self._modules.launch(step, binaries[step.source.key], memory, status, target)
                for step in sequence.steps
            ]
            return _run_in_order(launches)

        return GpuKernel(bind, self._describe(sequence, binaries, target), workspace, sequence.status_message)

    def _describe(
        self, sequence: LaunchSequence, binaries: Mapping[str, KernelBinary], target: GpuTarget
    ) -> Description:
        providers, variants = [], []
        for step in sequence.steps:
            providers.append(("cublasLt" if step.epilogue else "cublas") if isinstance(step, Gemm) else "triton")
            variants.append(step.variant if isinstance(step, Gemm) else step.source.name)
        if any(isinstance(step, Gemm) for step in sequence.steps):
            self._cublas = version = self._products.version(target.device)
        else:
            version = next((b.compiler.removeprefix("triton ") for b in binaries.values()), "")
        shown = ", ".join(dict.fromkeys(variants)) or "nothing to do"
        return Description("+".join(sorted(set(providers))) or "triton", version, shown)

    def _launch_product(self, product: Gemm, memory: int, scratch: int, target: GpuTarget) -> Launch:
        a, b, c = (resolve_address(address, memory) for address in (product.a, product.b, product.c))
        if product.epilogue:
            assert self._epilogues is not None, "products have epilogues only with a library for them"
            return self._epilogues.launch(replace(product, a=a, b=b, c=c), memory + scratch, target.device)
        return self._products.launch(product, (a, b, c), memory + scratch, target.device)


def _run_in_order(launches: Sequence[Launch]) -> Launch:
    if len(launches) == 1:
        return launches[0]

    def launch(stream: int) -> None:
        for each in launches:
            each(stream)

    return launch
