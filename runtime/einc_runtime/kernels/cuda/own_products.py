"""Our own kernels for products: those that tuning tries, and the one that it has chosen (`triton/product.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.kernels.cuda.modules import LoadedModules
from einc_runtime.kernels.cuda.tuning import name_kernel
from einc_runtime.kernels.gpu import GpuTarget, Launch
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import KernelLaunch
from einc_runtime.kernels.triton.product import (
    ProductTile,
    build_gated_product,
    build_product,
    list_tiles,
    parse_tile,
)


class OwnProducts:
    """Compiles and loads them as `modules` does. A `program` is that of two products, and empty for one."""

    def __init__(self, modules: LoadedModules) -> None:
        self._modules = modules

    def find(self, record: str, products: Sequence[Gemm], program: str, target: GpuTarget) -> KernelLaunch | None:
        """The launch that a record of a tuning names; None where it is unknown, or compiled by another compiler.

        The record may come from a file of others.
        """
        name, _, compiler = record.partition(", ")
        tile = parse_tile(name, products, target.architecture)
        if tile is None:
            return None
        launch = _build(products, program, tile, target)
        try:
            return launch if self._modules.binary(launch.source, target.architecture).compiler == compiler else None
        except (MissingFault, KernelFault):
            return None

    def candidates(
        self, products: Sequence[Gemm], program: str, workspace: int, target: GpuTarget
    ) -> Iterator[tuple[str, Launch]]:
        """Records and launches, for tuning; a kernel is compiled when it is first launched. None without a compiler."""
        if self._modules.compiler is not None:
            for tile in list_tiles(products, target.architecture):
                launch = _compile_late(self._modules, _build(products, program, tile, target), workspace, target)
                yield name_kernel(tile, self._modules.compiler), launch


def _build(products: Sequence[Gemm], program: str, tile: ProductTile, target: GpuTarget) -> KernelLaunch:
    if program:
        return build_gated_product(products, program, tile, target.multiprocessors)
    return build_product(products[0], tile, target.multiprocessors)


def _compile_late(modules: LoadedModules, call: KernelLaunch, workspace: int, target: GpuTarget) -> Launch:
    loaded: list[Launch] = []

    def launch(stream: int) -> None:
        if not loaded:
            loaded.append(modules.launch(call, modules.binary(call.source, target.architecture), workspace, 0, target))
        loaded[0](stream)

    return launch
