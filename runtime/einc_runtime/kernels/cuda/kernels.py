"""The kernels of GPUs as the CUDA executor asks for them: launch sequences are built, compiled and bound.

Libraries are tried for attention before our own kernel: see `fused_attention.py`. Contractions may include the map
after them: see `triton/epilogue.py`. A measurement may choose other algorithms for both, or our own kernels: see
`tuning.py`. Every other kernel has one provider.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from einc_runtime.kernels.base import GatedInvocations, Invocation
from einc_runtime.kernels.cuda import cublaslt, kernel_cache
from einc_runtime.kernels.cuda.cublas import WORKSPACE, Cublas, CublasError, ProductLibrary
from einc_runtime.kernels.cuda.cublaslt import Algorithm, EpilogueLibrary
from einc_runtime.kernels.cuda.fused_attention import AttentionLibraries
from einc_runtime.kernels.cuda.hipblaslt import HipProducts
from einc_runtime.kernels.cuda.modules import (
    CupyModules,
    LoadedModules,
    ModuleDriver,
    RuntimeModules,
    resolve_address,
    scratch_size,
)
from einc_runtime.kernels.cuda.own_products import OwnProducts
from einc_runtime.kernels.cuda.triton_compile import KernelBinary
from einc_runtime.kernels.cuda.tuning import Tuning, find_tuning, name_gated_pair, name_product
from einc_runtime.kernels.gpu import (
    Alternatives,
    Description,
    GpuArray,
    GpuKernel,
    GpuTarget,
    Kernels,
    Launch,
    ResultBytes,
)
from einc_runtime.kernels.triton.batched_pair import build_batched_pair, build_contraction
from einc_runtime.kernels.triton.gated_pair import GatedPair, build_gated_pair
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.kernels import TritonKernels
from einc_runtime.kernels.triton.launches import KernelLaunch, LaunchSequence, LaunchStep, relocate_step
from einc_runtime.kernels.triton.product import build_product, list_tiles

_UNKNOWN_ALGORITHM = "some algorithms of the plan's tuning cannot be used here: tune it again with `einc tune`"


def open_kernels(folders: Sequence[Path] = (), tunings: Sequence[Tuning] = ()) -> Kernels:
    """The kernels of this machine's GPUs. Compiled ones are looked for in `folders` before all others; `tunings` say
    which algorithms compute products."""
    return CudaKernels((*folders, *kernel_cache.directories()), tunings=tunings)


def open_hip_kernels(
    runtime: Any, error: type[Exception], folders: Sequence[Path] = (), products: Any = None
) -> Kernels:
    """The kernels of AMD's GPUs. `runtime` is a binding of HIP by cupy's names, whose functions raise `error`;
    `products` is hipBLASLt, unless it is to be opened."""
    modules = RuntimeModules(runtime, runtime, error, has_attributes=False)
    return CudaKernels((*folders, *kernel_cache.directories()), modules, HipProducts(modules.use, products))


class CudaKernels(TritonKernels):
    """See `gpu.Kernels`. `modules`, `products` and `epilogues` are those of CUDA unless a test gives others."""

    def __init__(
        self,
        places: Sequence[Path],
        modules: ModuleDriver | None = None,
        products: ProductLibrary | None = None,
        epilogues: EpilogueLibrary | None = None,
        tunings: Sequence[Tuning] = (),
    ) -> None:
        super().__init__()
        self._modules = LoadedModules(places, modules if modules is not None else CupyModules())
        self._own_products = products
        self._epilogues: EpilogueLibrary | None = epilogues
        self._epilogues_wanted = epilogues is None and products is None
        self._with_epilogues = False  # whether some kernel has one, or a tuned product
        self._tunings = tuple(tunings)
        self._own_kernels = OwnProducts(self._modules)
        self._bound: dict[tuple[str, int], tuple[Gemm, int, GpuTarget]] = {}  # one of each kind, and its workspace
        self._gated: dict[tuple[str, int], tuple[GatedPair, GatedInvocations[GpuArray], GpuTarget]] = {}
        self._notes: list[str] = []
        self._cublas = ""
        self._libraries = AttentionLibraries()

    def prepare_kernel(self, invocation: Invocation[GpuArray], target: GpuTarget) -> GpuKernel:
        if invocation.name == "attention" and not invocation.is_reproducible and not target.amd:
            fused = self._libraries.prepare(invocation, target)
            if fused is not None:
                return fused
        return super().prepare_kernel(invocation, target)

    def versions(self) -> Mapping[str, str]:
        compiler = self._modules.compiler
        versions = {"triton": compiler.removeprefix("triton ")} if compiler else {}
        versions |= self._libraries.versions
        if self._cublas:
            versions["cublas"] = self._cublas
        return versions

    @property
    def notes(self) -> Sequence[str]:
        return (*self._libraries.notes, *self._notes)

    def give_up(self, reason: str) -> bool:
        """Gives up what may have caused the failure: libraries for attention before epilogues, if it could be
        either."""
        is_of_epilogues = "cublasLt" in reason
        return (not is_of_epilogues and self._libraries.give_up(reason)) or self._give_up_epilogues(reason)

    def _give_up_epilogues(self, reason: str) -> bool:
        if self._epilogues is None or not self._with_epilogues:
            return False
        self._epilogues, self._with_epilogues = None, False
        self._bound.clear()
        self._gated.clear()
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
        library = self._open_epilogues()
        products = [step for step in sequence.steps if isinstance(step, Gemm) and step.epilogue]
        fits = library is not None and all(library.fits(product, target.device) for product in products)
        self._with_epilogues |= fits
        return fits

    def _open_epilogues(self) -> EpilogueLibrary | None:
        """cuBLASLt, where it is installed and has not been given up."""
        if self._epilogues_wanted:
            self._epilogues, self._epilogues_wanted = cublaslt.open_if_available(self._modules.driver.use), False
        return self._epilogues

    def list_alternatives(self, limit: int) -> Sequence[Alternatives]:
        library = self._open_epilogues()
        if library is None:
            return []
        return [*self._iterate_alternatives(library, limit), *self._iterate_gated(library)]

    def _iterate_alternatives(self, library: EpilogueLibrary, limit: int) -> Iterator[Alternatives]:
        for (name, device), (product, workspace, target) in list(self._bound.items()):
            self._modules.driver.use(device)
            try:
                proposals = library.proposals(product, device, limit)
            except CublasError:
                continue  # a kind of product that the library does not know, such as f64
            ways: list[tuple[bytes | str, Launch]]
            ways = [
                (candidate.record, library.launch(product, workspace, device, candidate)) for candidate in proposals
            ]
            if not product.epilogue and not product.is_scaled:
                usual = self._products.launch(product, (product.a, product.b, product.c), workspace, device)
                ways.insert(0, (b"", usual))
            candidates = list(self._own_kernels.candidates([product], "", workspace, target)) if ways else []
            ways += [(candidate.record, candidate.launch) for candidate in candidates]
            if len(ways) > 1:
                records, launches = zip(*ways, strict=True)
                jobs, result = (
                    tuple((candidate.source, target.architecture) for candidate in candidates),
                    _find_result(product),
                )
                yield Alternatives(name, target.name, library.version, device, records, launches, result, jobs=jobs)

    def _iterate_gated(self, library: EpilogueLibrary) -> Iterator[Alternatives]:
        """Two products and the map of both: the kernels that they are without tuning, and ours."""
        for (name, device), (pair, invocations, target) in self._gated.items():
            contractions = invocations.first, invocations.second
            self._modules.driver.use(device)
            workspace = next(
                (memory for (_, bound_device), (_, memory, _) in self._bound.items() if bound_device == device), None
            )
            if workspace is None:
                continue
            both = super().prepare_batched_pair(*contractions, target)
            kernels = (
                [both]
                if both is not None
                else [self.prepare_kernel(contraction, target) for contraction in contractions]
            )
            kernels.append(self.prepare_kernel(invocations.then, target))
            candidates = list(self._own_kernels.candidates(pair.products, pair.program, workspace, target))
            if candidates and all(kernel.workspace <= WORKSPACE for kernel in kernels):
                usual = _run_in_order([kernel.bind(workspace, 0) for kernel in kernels])
                yield Alternatives(
                    name,
                    target.name,
                    library.version,
                    device,
                    (b"", *(candidate.record for candidate in candidates)),
                    (usual, *(candidate.launch for candidate in candidates)),
                    _find_result(pair.products[0]),
                    tuple(_name_parts(contractions, target)),
                    tuple((candidate.source, target.architecture) for candidate in candidates),
                )

    def prepare_gated_pair(self, pair: GatedInvocations[GpuArray], target: GpuTarget) -> GpuKernel | None:
        if pair.names != ("contract", "contract", "map"):
            return super().prepare_gated_pair(pair, target)
        products = build_gated_pair(pair)
        if products is None:
            return None
        name = name_gated_pair(products)
        self._gated.setdefault((name, target.device), (products, pair, target))
        record = self._find_choice(name, target)
        if not isinstance(record, str):
            return super().prepare_gated_pair(pair, target)
        call = self._own_kernels.find(record, products.products, products.program, target)
        self._note_unknown(call is None)
        return None if call is None else self.prepare(LaunchSequence((call,)), target)

    def _find_choice(self, name: str, target: GpuTarget) -> bytes | str:
        """What a measurement has chosen on this kind of GPU with this library; b"" where that is the usual way."""
        library = self._open_epilogues() if self._tunings else None
        tuning = None if library is None else find_tuning(self._tunings, target.name, library.version)
        choice = None if tuning is None else tuning.choices.get(name)
        return b"" if choice is None else choice.algorithm

    def _find_tuned(self, product: Gemm, target: GpuTarget) -> Algorithm | None:
        """The library's algorithm that a measurement has chosen for products like this on this GPU, if it is one."""
        choice = self._find_choice(name_product(product), target)
        if not choice or isinstance(choice, str) or self._epilogues is None:
            return None
        algorithm = self._epilogues.restore(choice, product, target.device)
        self._note_unknown(algorithm is None)
        self._with_epilogues |= algorithm is not None
        return algorithm

    def _note_unknown(self, unknown: bool) -> None:
        if unknown and _UNKNOWN_ALGORITHM not in self._notes:
            self._notes.append(_UNKNOWN_ALGORITHM)

    def _use_own(self, step: LaunchStep, target: GpuTarget) -> LaunchStep:
        """Our own kernel in place of a product for which a measurement has chosen it."""
        choice = self._find_choice(name_product(step), target) if isinstance(step, Gemm) else b""
        if not isinstance(step, Gemm) or not isinstance(choice, str):
            return step
        call = self._own_kernels.find(choice, [step], "", target)
        self._note_unknown(call is None)
        return step if call is None else call

    def _replace_unknown(self, step: LaunchStep, target: GpuTarget) -> LaunchStep:
        """Our own kernel in place of a product with scales that the library does not know."""
        if not isinstance(step, Gemm) or not step.is_scaled:
            return step
        library = self._open_epilogues()
        if library is not None and library.fits(step, target.device):
            self._with_epilogues = True
            return step
        return build_product(step, list_tiles([step], target.architecture)[0], target.multiprocessors)

    def prepare(self, sequence: LaunchSequence, target: GpuTarget) -> GpuKernel:
        """Compiles all sources. Modules are loaded when the kernel is bound."""
        steps = (self._replace_unknown(self._use_own(step, target), target) for step in sequence.steps)
        sequence = replace(sequence, steps=tuple(steps))
        calls = [step for step in sequence.steps if isinstance(step, KernelLaunch)]
        binaries = {step.source.key: self._modules.binary(step.source, target.architecture) for step in calls}
        products = any(isinstance(step, Gemm) for step in sequence.steps)
        before = sequence.scratch + (WORKSPACE if products else 0)
        more = max((scratch_size(call, binaries[call.source.key]) for call in calls), default=0)

        def bind(memory: int, status: int) -> Launch:
            launches = [
                self._launch_product(step, memory, sequence.scratch, target)
                if isinstance(step, Gemm)
                else self._modules.launch(
                    step, binaries[step.source.key], memory, status, target, memory + before if more else 0
                )
                for step in sequence.steps
            ]
            return _run_in_order(launches)

        return GpuKernel(bind, self._describe(sequence, binaries, target), before + more, sequence.status_message)

    def _describe(
        self, sequence: LaunchSequence, binaries: Mapping[str, KernelBinary], target: GpuTarget
    ) -> Description:
        providers, variants = [], []
        for step in sequence.steps:
            if isinstance(step, Gemm):
                tuned = self._find_tuned(step, target) is not None
                providers.append("cublasLt" if step.epilogue or step.is_scaled or tuned else "cublas")
                variants.append(step.variant + ", tuned" * tuned)
            else:
                providers.append("triton")
                variants.append(step.source.name)
        if any(isinstance(step, Gemm) for step in sequence.steps):
            self._cublas = version = self._products.version(target.device)
        else:
            version = next((b.compiler.removeprefix("triton ") for b in binaries.values()), "")
        shown = ", ".join(dict.fromkeys(variants)) or "nothing to do"
        return Description("+".join(sorted(set(providers))) or "triton", version, shown)

    def _launch_product(self, product: Gemm, memory: int, scratch: int, target: GpuTarget) -> Launch:
        resolved = relocate_step(product, lambda address: resolve_address(address, memory))
        assert isinstance(resolved, Gemm)
        workspace = memory + scratch
        self._bound.setdefault((name_product(resolved), target.device), (resolved, workspace, target))
        algorithm = self._find_tuned(resolved, target)
        if resolved.epilogue or resolved.is_scaled or algorithm is not None:
            assert self._epilogues is not None, (
                "products have epilogues and tuned algorithms only with a library for them"
            )
            return self._epilogues.launch(resolved, workspace, target.device, algorithm)
        pointers = resolved.a, resolved.b, resolved.c
        return self._products.launch(resolved, pointers, workspace, target.device)


def _run_in_order(launches: Sequence[Launch]) -> Launch:
    if len(launches) == 1:
        return launches[0]

    def launch(stream: int) -> None:
        for each in launches:
            each(stream)

    return launch


def _find_result(product: Gemm) -> ResultBytes:
    """The elements from the first one that a product writes to the last one."""
    p = product
    return ResultBytes(p.c, (p.batch - 1) * p.stride_c + (p.n - 1) * p.ldc + p.m, p.result)


def _name_parts(contractions: tuple[Invocation[GpuArray], Invocation[GpuArray]], target: GpuTarget) -> Iterator[str]:
    """The products that two contractions are without tuning."""
    batch = build_batched_pair(*contractions, target.multiprocessors)
    for sequence in [batch] if batch is not None else map(build_contraction, contractions):
        yield from (name_product(step) for step in sequence.steps if isinstance(step, Gemm))
