"""What a GPU kernel is before it is compiled: launches of Triton sources, products of matrices, and workspace.

A launch sequence is pure data, made from shapes, strides and addresses alone. Everything about an operand except its
address (extents, strides, type) is written into the source. So kernels take pointers and nothing else, the compiler
sees every constant, and equal work has equal text. Nothing here needs Triton or a GPU: `kernels.cuda` compiles
a `KernelSource`, and runs launch sequences.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, find_dtype_name, storage_dtype
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, GpuArray
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.views import strides_of
from einc_runtime.plan.element_types import ELEMENT_FORMATS

POINTER_ALIGNMENT = 16
"""Bytes of the widest access to memory, which is used for pointers that are known to be aligned to it."""

SCRATCH = 1 << 62
"""Addresses from here on are offsets in a kernel's workspace, whose address is known only when it is bound."""

APART = 1 << 50
"""Where in the workspace further arrays lie while launches are built, until it is known how much these need
themselves."""

SIGNATURE_TYPES = {**{str(name): each.triton for name, each in ELEMENT_FORMATS.items()}, "i16": "i16"}
"""The plan's names of types, and of bits that are only moved -> their names in Triton's signatures. A bool is a byte
in memory, and so is a float of 8 bits, which sources widen and round by its bits: not all GPUs know the types."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel: the function `name` in the module `text`, called with pointers to elements of `types`.

    `aligned` says which pointers are multiples of POINTER_ALIGNMENT; `warps` and `stages` are Triton's num_warps and
    num_stages.
    Unless the source `fuses`, every product and every sum is rounded by itself. Otherwise the compiler chooses which of
    them become fused multiply-adds, and may choose differently in kernels for other blocks.
    """

    name: str
    text: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int = 4
    stages: int = 3
    fuses: bool = True

    @property
    def key(self) -> str:
        """A hash that is equal for equal kernels only: the name under which compiled code is kept."""
        return _digest(self)

    def without_fusion(self) -> KernelSource:
        """The same source, not fused, under a name of its own, since profilers tell kernels apart by their names."""
        return replace(self, fuses=False).renamed(self.name.rpartition("_")[0])

    def renamed(self, name: str) -> KernelSource:
        """The same kernel under a name, to which a digest is appended, so that profilers can distinguish kernels."""
        unique = f"{name}_{self.key[:8]}"
        return replace(self, name=unique, text=self.text.replace(f"def {self.name}(", f"def {unique}("))

    def signature(self) -> dict[str, str]:
        """Argument name -> Triton's type, in order; the names are read from the source's def line."""
        start = self.text.index(f"def {self.name}(") + len(f"def {self.name}(")
        names = [name.strip() for name in self.text[start : self.text.index(")", start)].split(",")]
        return {name: "*" + SIGNATURE_TYPES[kind] for name, kind in zip(names, self.types, strict=True)}


@lru_cache(maxsize=4096)
def _digest(source: KernelSource) -> str:
    parts = [source.name, source.text, source.types, source.aligned, source.warps, source.stages]
    parts += [] if source.fuses else ["not fused"]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Table:
    """Constant data that a kernel reads; it is uploaded once, before the first launch."""

    data: bytes

    @staticmethod
    def of(array: Array) -> Table:
        return Table(np.ascontiguousarray(array).tobytes())


@dataclass(frozen=True, slots=True)
class StatusPointer:
    """Stands for the address of the kernel's status word."""


Argument = int | Table | StatusPointer
"""A pointer: an address, SCRATCH plus an offset in the workspace, a table, or the status word."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A launch of `grid` programs of a kernel."""

    source: KernelSource
    grid: int
    arguments: tuple[Argument, ...]


LaunchStep = KernelLaunch | Gemm


@dataclass(frozen=True, slots=True)
class LaunchSequence:
    """The steps of one kernel in their order, and the bytes of workspace that they share.

    `status_message` is that of `gpu.GpuKernel`; if it is set, some step has the status word as an argument.
    `has_addresses` says that some table contains addresses, so that it cannot be moved.
    """

    steps: tuple[LaunchStep, ...]
    scratch: int = 0
    status_message: str | None = None
    has_addresses: bool = False

    def without_fusion(self) -> LaunchSequence:
        """The same launches, with every product and every sum rounded by itself."""
        steps = (
            replace(step, source=step.source.without_fusion()) if isinstance(step, KernelLaunch) else step
            for step in self.steps
        )
        return replace(self, steps=tuple(steps))


def relocate_step(step: LaunchStep, relocate: Callable[[int], int]) -> LaunchStep:
    """The step on other memory: `relocate` gives the new address for each one."""
    if isinstance(step, Gemm):
        added, bias, of_m, of_n = (
            relocate(pointer) if pointer else 0 for pointer in (step.addend, step.bias, step.scale_m, step.scale_n)
        )
        a, b, c = relocate(step.a), relocate(step.b), relocate(step.c)
        return replace(step, a=a, b=b, c=c, addend=added, bias=bias, scale_m=of_m, scale_n=of_n)

    def pointer(argument: Argument) -> Argument:
        return relocate(argument) if isinstance(argument, int) else argument

    return replace(step, arguments=tuple(pointer(argument) for argument in step.arguments))


class WorkspaceAllocator:
    """Hands out workspace while a launch sequence is built; `size` is the total in bytes."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def take(self, shape: Sequence[int], kind: DType) -> Array:
        """A future dense array, as a layout."""
        address = SCRATCH + self.size
        self.size += -(-max(1, math.prod(shape)) * kind.itemsize // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        return as_layout(
            GpuArray(address, tuple(shape), strides_of(shape, kind.itemsize), find_dtype_name(kind) or "", 0)
        )


def as_layout(array: GpuArray) -> Array:
    """A numpy array over the same addresses. Its elements must not be read: only its shape, strides and type may be
    used.

    So the code that checks and transforms views for kernels of the CPU also does so for those of a GPU.
    """
    kind = storage_dtype(array.dtype)
    bits = "?" if array.dtype == "bool" else f"u{kind.itemsize}"
    holder = _Interface(array.pointer, array.shape, array.strides, np.dtype(bits).str)
    seen: Array = np.asarray(holder).view(kind)
    return seen


class _Interface:
    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__: dict[str, Any] = {
            "shape": shape, "strides": strides, "typestr": typestr, "data": (pointer, False), "version": 3,
        }  # fmt: skip
