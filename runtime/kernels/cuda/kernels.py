"""The GPU's kernels as the CUDA executor asks for them: plans are made, compiled or found compiled, and bound.

Attention has further providers, tried in order: see `fused_attention.py`. Contractions may take the map after them
with them: see `plans/epilogue.py`. All else has one provider.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runtime.dtypes import Array
from runtime.errors import MissingFault
from runtime.kernels.base import Invocation
from runtime.kernels.cuda import cublaslt, kernel_cache, triton_compile
from runtime.kernels.cuda.cublas import WORKSPACE, Cublas, Products
from runtime.kernels.cuda.cublaslt import Epilogues
from runtime.kernels.cuda.fused_attention import Libraries
from runtime.kernels.cuda.launch import CupyModules, ModuleDriver, launcher
from runtime.kernels.cuda.triton_compile import Binary
from runtime.kernels.gpu import Description, GpuArray, GpuKernel, Kernels, Launch, Target
from runtime.kernels.plans import planners
from runtime.kernels.plans.epilogue import planned_with_epilogue
from runtime.kernels.plans.gemm import Gemm
from runtime.kernels.plans.repeated import ADDRESSED, RepeatedPlans, key_of
from runtime.kernels.plans.side_by_side import planned_side_by_side
from runtime.kernels.plans.source import SCRATCH, Argument, Call, Plan, Source, Status, Table, layout


def kernels(places: Sequence[Path] | None = None) -> Kernels:
    """The real ones. `places` are directories with compiled kernels, by default those of `kernel_cache`."""
    return GpuKernels(kernel_cache.directories() if places is None else tuple(places))


class PlannedKernels(ABC):
    """Makes plans of what the executor asks for; what becomes of them is for subclasses to say."""

    def __init__(self) -> None:
        self.repeated = RepeatedPlans()

    def kernel(self, invocation: Invocation[GpuArray], target: Target) -> GpuKernel:
        count = len(invocation.inputs)

        def plan(views: Sequence[Array]) -> Plan:
            return planners.plan_kernel(invocation.on(views[:count], views[count:]), target.architecture)

        arrays = [*invocation.inputs, *invocation.outputs]
        if invocation.name in ADDRESSED:
            return self.prepared(plan([layout(array) for array in arrays]), target)
        return self.prepared(self.repeated.planned(key_of(invocation, target.architecture), arrays, plan), target)

    def with_epilogue(
        self, first: Invocation[GpuArray], then: Invocation[GpuArray], place: int, target: Target
    ) -> GpuKernel | None:
        if first.name != "contract" or then.name != "map":
            return None
        plan = planned_with_epilogue(first, then, place)
        return None if plan is None or not self.has_epilogues(plan, target) else self.prepared(plan, target)

    def side_by_side(
        self, first: Invocation[GpuArray], second: Invocation[GpuArray], target: Target
    ) -> GpuKernel | None:
        if first.name != "contract" or second.name != "contract":
            return None
        plan = planned_side_by_side(first, second, target.multiprocessors)
        return None if plan is None else self.prepared(plan, target)

    def has_epilogues(self, plan: Plan, target: Target) -> bool:
        """Whether the products of a plan can be had with their epilogues."""
        return False

    def aggregate(self, aggregation: str, reads: Sequence[GpuArray], write: GpuArray, target: Target) -> GpuKernel:
        def plan(views: Sequence[Array]) -> Plan:
            return planners.plan_aggregate(aggregation, views[:-1], views[-1])

        return self.prepared(self.repeated.planned(("aggregate", aggregation), [*reads, write], plan), target)

    def merge(
        self,
        aggregation: str,
        reads: Sequence[GpuArray],
        writes: Sequence[GpuArray],
        dims: Sequence[Sequence[int]],
        target: Target,
    ) -> GpuKernel:
        views, results = [layout(x) for x in reads], [layout(x) for x in writes]
        return self.prepared(planners.plan_merge(aggregation, views, results, dims), target)

    def moves(self, reads: Sequence[GpuArray], writes: Sequence[GpuArray], target: Target) -> GpuKernel:
        return self.prepared(planners.plan_moves([layout(x) for x in reads], [layout(x) for x in writes]), target)

    @abstractmethod
    def prepared(self, plan: Plan, target: Target) -> GpuKernel:
        """The kernel of a plan."""

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def give_up(self, reason: str) -> bool:
        return False

    @abstractmethod
    def versions(self) -> Mapping[str, str]: ...

    @abstractmethod
    def close(self) -> None: ...


class GpuKernels(PlannedKernels):
    """See `runtime.kernels.gpu.Kernels`. `modules`, `products` and `epilogues` are CUDA's unless a test has others."""

    def __init__(
        self,
        places: Sequence[Path],
        modules: ModuleDriver | None = None,
        products: Products | None = None,
        epilogues: Epilogues | None = None,
    ) -> None:
        super().__init__()
        self._places = tuple(places)
        self._modules = modules if modules is not None else CupyModules()
        self._own_products = products
        self._epilogues: Epilogues | None = epilogues
        self._epilogues_wanted = epilogues is None and products is None
        self._with_epilogues = False  # whether some kernel has one
        self._notes: list[str] = []
        self._compiler = triton_compile.version()
        self._binaries: dict[tuple[str, str], Binary] = {}
        self._functions: dict[tuple[int, str], int] = {}
        self._loaded: list[tuple[int, int]] = []  # device and module
        self._tables: dict[tuple[int, bytes], int] = {}
        self._cublas = ""
        self._libraries = Libraries()

    def kernel(self, invocation: Invocation[GpuArray], target: Target) -> GpuKernel:
        if invocation.name == "attention":
            fused = self._libraries.prepared(invocation, target)
            if fused is not None:
                return fused
        return super().kernel(invocation, target)

    def versions(self) -> Mapping[str, str]:
        found = {"triton": self._compiler.removeprefix("triton ")} if self._compiler else {}
        found |= self._libraries.versions
        if self._cublas:
            found["cublas"] = self._cublas
        return found

    @property
    def notes(self) -> Sequence[str]:
        return (*self._libraries.notes, *self._notes)

    def give_up(self, reason: str) -> bool:
        """First what the reason may come of; libraries for attention before epilogues, if it could be either."""
        own = "cublasLt" in reason
        return (not own and self._libraries.give_up(reason)) or self._without_epilogues(reason)

    def _without_epilogues(self, reason: str) -> bool:
        if self._epilogues is None or not self._with_epilogues:
            return False
        self._epilogues, self._with_epilogues = None, False
        self._notes.append(f"products of matrices take no epilogues with them: {' '.join(reason.split())[:200]}")
        return True

    def close(self) -> None:
        """Everything is tried, also after a device was lost; the first error is raised in the end."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._libraries.close)
            for library in (self._own_products, self._epilogues):
                if library is not None:
                    stack.callback(library.close)
            while self._tables:
                (device, _), pointer = self._tables.popitem()
                stack.callback(self._modules.release, pointer)
                stack.callback(self._modules.use, device)
            while self._loaded:
                device, module = self._loaded.pop()
                stack.callback(self._modules.unload, module)
                stack.callback(self._modules.use, device)
            self._functions.clear()

    @property
    def _products(self) -> Products:
        if self._own_products is None:
            self._own_products = Cublas(self._modules.use)
        return self._own_products

    def has_epilogues(self, plan: Plan, target: Target) -> bool:
        if self._epilogues_wanted:
            self._epilogues, self._epilogues_wanted = cublaslt.available(self._modules.use), False
        found = self._epilogues
        products = [step for step in plan.steps if isinstance(step, Gemm) and step.epilogue]
        fits = found is not None and all(found.fits(product, target.device) for product in products)
        self._with_epilogues |= fits
        return fits

    def prepared(self, plan: Plan, target: Target) -> GpuKernel:
        """Everything is compiled here; modules are loaded as the kernel is bound."""
        binaries = {step.source.key: self._binary(step.source, target) for step in plan.steps if isinstance(step, Call)}
        products = any(isinstance(step, Gemm) for step in plan.steps)
        workspace = plan.scratch + (WORKSPACE if products else 0)

        def bind(memory: int, status: int) -> Launch:
            launches = [
                self._product(step, memory, plan.scratch, target)
                if isinstance(step, Gemm)
                else self._call(step, binaries[step.source.key], memory, status, target)
                for step in plan.steps
            ]
            return _in_order(launches)

        return GpuKernel(bind, self._description(plan, binaries, target), workspace, plan.complaint)

    def _description(self, plan: Plan, binaries: Mapping[str, Binary], target: Target) -> Description:
        providers, variants = [], []
        for step in plan.steps:
            providers.append(("cublasLt" if step.epilogue else "cublas") if isinstance(step, Gemm) else "triton")
            variants.append(step.variant if isinstance(step, Gemm) else step.source.name)
        if any(isinstance(step, Gemm) for step in plan.steps):
            self._cublas = version = self._products.version(target.device)
        else:
            version = next((b.compiler.removeprefix("triton ") for b in binaries.values()), "")
        shown = ", ".join(dict.fromkeys(variants)) or "nothing to do"
        return Description("+".join(sorted(set(providers))) or "triton", version, shown)

    def _binary(self, source: Source, target: Target) -> Binary:
        key = (source.key, target.architecture)
        if key not in self._binaries:
            self._binaries[key] = self._found_or_compiled(source, target.architecture)
        return self._binaries[key]

    def _found_or_compiled(self, source: Source, architecture: str) -> Binary:
        found = kernel_cache.find(source, architecture, self._places, self._compiler)
        if found is not None:
            return found
        try:
            binary = triton_compile.compile_source(source, architecture)
        except MissingFault as fault:
            others = kernel_cache.known(source, self._places)
            if not others:
                raise
            message = f"this plan's kernels are compiled for {', '.join(others)} only, and this is {architecture}"
            raise MissingFault(message, hint=f"compile with --precompile {architecture}, or {fault.hint}") from None
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to fail
            kernel_cache.store(source, architecture, binary, kernel_cache.user_directory())
        return binary

    def _call(self, call: Call, binary: Binary, memory: int, status: int, target: Target) -> Launch:
        key = (target.device, call.source.key)
        if key not in self._functions:
            module, function = self._modules.load(binary.code, binary.function, binary.shared)
            self._loaded.append((target.device, module))
            self._functions[key] = function
        pointers = [self._pointer(argument, memory, status, target) for argument in call.arguments]
        return launcher(self._modules, self._functions[key], call.grid, binary.warps, binary.shared, pointers)

    def _product(self, product: Gemm, memory: int, scratch: int, target: Target) -> Launch:
        a, b, c = (self._pointer(pointer, memory, 0, target) for pointer in (product.a, product.b, product.c))
        if product.epilogue:
            assert self._epilogues is not None, "no product has an epilogue without"
            return self._epilogues.launch(replace(product, a=a, b=b, c=c), memory + scratch, target.device)
        return self._products.launch(product, (a, b, c), memory + scratch, target.device)

    def _pointer(self, argument: Argument, memory: int, status: int, target: Target) -> int:
        if isinstance(argument, Table):
            key = (target.device, argument.data)
            if key not in self._tables:
                self._tables[key] = self._modules.upload(argument.data)
            return self._tables[key]
        if isinstance(argument, Status):
            return status
        return memory + argument - SCRATCH if argument >= SCRATCH else argument


def _in_order(launches: Sequence[Launch]) -> Launch:
    if len(launches) == 1:
        return launches[0]

    def launch(stream: int) -> None:
        for each in launches:
            each(stream)

    return launch
