"""Our own kernels for products: those that tuning tries, and the one that it has chosen (`triton/product.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.kernels.cuda.cublas import WORKSPACE
from einc_runtime.kernels.cuda.modules import LoadedModules, scratch_size
from einc_runtime.kernels.cuda.tuning import name_kernel
from einc_runtime.kernels.gpu import GpuTarget, Launch
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import KernelLaunch, KernelSource
from einc_runtime.kernels.triton.product import (
    ProductTile,
    build_gated_product,
    build_product,
    list_tiles,
    parse_tile,
)


@dataclass(frozen=True, slots=True)
class OwnCandidate:
    """A kernel of ours that tuning tries: its record, its launch, and its source."""

    record: str
    launch: Launch
    source: KernelSource


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
    ) -> Iterator[OwnCandidate]:
        """What tuning tries; a kernel is compiled when it is first launched. None without a compiler."""
        if self._modules.compiler is not None:
            for tile in list_tiles(products, target.architecture):
                call = _build(products, program, tile, target)
                launch = _compile_late(self._modules, call, workspace, target)
                yield OwnCandidate(name_kernel(tile, self._modules.compiler), launch, call.source)


def _build(products: Sequence[Gemm], program: str, tile: ProductTile, target: GpuTarget) -> KernelLaunch:
    if program:
        return build_gated_product(products, program, tile, target.multiprocessors)
    return build_product(products[0], tile, target.multiprocessors)


def _compile_late(modules: LoadedModules, call: KernelLaunch, workspace: int, target: GpuTarget) -> Launch:
    """A launch that is compiled and loaded when it is first made. Raises KernelFault where the GPU refuses it, such as
    for too many registers."""
    loaded: list[Launch] = []

    def launch(stream: int) -> None:
        try:
            if not loaded:
                binary = modules.binary(call.source, target.architecture)
                if scratch_size(call, binary) > WORKSPACE:
                    raise KernelFault(f"{call.source.name} needs more scratch memory than there is")
                loaded.append(modules.launch(call, binary, 0, 0, target, workspace))
            loaded[0](stream)
        except (KernelFault, MissingFault):
            raise
        except Exception as error:  # of the driver's binding, whose types are not known here
            raise KernelFault(f"{call.source.name} cannot be launched: {error}") from error

    return launch
