"""How long cuBLASLt's proposals take for the products of a plan, beside what cuBLAS chooses, and whether two products
are faster in a batch than one after the other. Plans do not choose by time; this tells what that costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.step_kernels import StepKernels
from einc_runtime.execution.rewrites.kernel_fusion import find_contraction_pairs
from einc_runtime.kernels.cuda import cublas, cublaslt
from einc_runtime.kernels.triton.batched_pair import batch_products
from einc_runtime.kernels.triton.contract import build_contract
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import as_layout
from einc_runtime.plan.schema import KernelTask
from tests.gpu.places import Place
from tests.gpu.steps import is_later_layer, milliseconds

PROPOSALS = 8


def products_of(executor: CudaExecutor) -> Iterator[tuple[str, Gemm]]:
    """Contractions of a plan for one site that are one product each, by their names, and pairs of them as a batch."""
    plan, bundle = executor._plan, executor.bundle
    tasks = plan.errors.tasks
    step_kernels = StepKernels(
        bundle,
        tasks,
        plan.memory,
        kernels=executor._kernels,
        driver=executor._driver,
        targets=plan.targets,
        staging=(),
    )
    found: dict[int, Gemm] = {}
    for number, task in enumerate(tasks):
        if isinstance(task, KernelTask) and bundle.operations[task.operation].kernel == "contract":
            own = step_kernels.make_invocation(task)
            steps = build_contract(own.on([*map(as_layout, own.inputs)], [*map(as_layout, own.outputs)])).steps
            if len(steps) == 1 and isinstance(steps[0], Gemm):
                found[number] = steps[0]
                yield task.serves, steps[0]
    for first, second in find_contraction_pairs(bundle, tasks).items():
        both = batch_products(found[first], found[second]) if {first, second} <= found.keys() else None
        if both is not None:
            yield f"{tasks[first].serves} and {tasks[second].serves}", both


def by_algorithm(executor: CudaExecutor, alone: dict[str, dict[str, float]], place: Place) -> list[str]:
    """A line for every product: milliseconds by cuBLAS, and by cuBLASLt's proposals in their order.

    They go to `alone`, by the name of the product and of the library. Of several layers, the first stands for all.
    """
    import torch

    use, device = executor._driver.use, 0
    library, lt = cublas.Cublas(use), cublaslt.open_if_available(use)
    memory = torch.empty(cublas.WORKSPACE, dtype=torch.uint8, device=place.torch)
    workspace = memory.data_ptr()

    def timed(name: str, by: str, launch: Callable[[int], Any]) -> str:
        def call() -> None:
            launch(torch.cuda.current_stream().cuda_stream if place.torch == "cuda" else 0)

        try:
            took = milliseconds(call, place)
        except cublas.CublasError as error:
            return str(error)
        known = alone.setdefault(name, {})
        known[by] = min(took, known.get(by, took))
        return f"{took:.4f}"

    lines = []
    try:
        for name, product in products_of(executor):
            if is_later_layer(name):
                continue
            own = timed(name, "cuBLAS", library.launch(product, (product.a, product.b, product.c), workspace, device))
            proposals = lt.proposals(product, device, PROPOSALS) if lt is not None else []
            launch = partial(lt.launch, product, workspace, device) if lt is not None else None
            others = [timed(name, "cuBLASLt", launch(algorithm)) for algorithm in proposals if launch is not None]
            lines.append(f"- {name}, {product.variant}: cuBLAS {own}; cuBLASLt {', '.join(others)} ms")
    finally:
        library.close()
        if lt is not None:
            lt.close()
    return lines
