"""What a Triton kernel is before anything is compiled: readable source, the types of its pointers, and where it runs.

All that is known of an operand but its address (extents, strides, type) is written into the source as numbers, so that
kernels take pointers and nothing else, compilers see every constant, and equal work has equal text. Nothing here needs
Triton or a GPU; `runtime.kernels.cuda.triton_compile` makes machine code of a `Source`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from runtime.dtypes import ITEMSIZE, Array, DType, name_of, storage
from runtime.kernels.base import address, dtype_name
from runtime.kernels.gpu import WORKSPACE_ALIGNMENT, GpuArray
from runtime.kernels.plans.gemm import Gemm
from runtime.strides import strides_of

ALIGNMENT = 16
"""Bytes of the widest access to memory; a pointer that is known to be so aligned is read and written in such units."""

SCRATCH = 1 << 62
"""Addresses from here on are offsets in a kernel's workspace, whose address is known only when it is bound."""

TYPES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "f64": "fp64", "i32": "i32", "i64": "i64", "bool": "i8",
         "i8": "i8", "i16": "i16"}  # fmt: skip
"""The bundle's names of types, and of bits that are only moved, as Triton's signatures have them. Truth values are
bytes in memory."""

BYTES = {**ITEMSIZE, "i8": 1, "i16": 2}

UNITS = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
"""Bytes -> the type of bits that are only moved."""

LANGUAGE = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
    "i32": "tl.int32", "i64": "tl.int64", "bool": "tl.int1",
}  # fmt: skip
"""The same as a kernel's source has them."""

HEADER = "import triton\nimport triton.language as tl\n"


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel: the function `name` in the module `text`, called with pointers to elements of `types`.

    `aligned` says which pointers are multiples of ALIGNMENT; `warps` and `stages` are Triton's num_warps, num_stages.
    """

    name: str
    text: str
    types: tuple[str, ...]
    aligned: tuple[bool, ...]
    warps: int = 4
    stages: int = 3

    @property
    def key(self) -> str:
        """Equal for equal kernels, and for no others: the name under which compiled code is kept."""
        return _digest(self)

    def signature(self) -> dict[str, str]:
        """Argument name -> Triton's type of it, in order; arguments are read from the source's def line."""
        start = self.text.index(f"def {self.name}(") + len(f"def {self.name}(")
        names = [name.strip() for name in self.text[start : self.text.index(")", start)].split(",")]
        return {name: "*" + TYPES[kind] for name, kind in zip(names, self.types, strict=True)}


@dataclass(frozen=True, slots=True)
class Table:
    """Constant data that a kernel reads: made once, before its first launch."""

    data: bytes

    @staticmethod
    def of(array: Array) -> Table:
        return Table(np.ascontiguousarray(array).tobytes())


@dataclass(frozen=True, slots=True)
class Status:
    """The address of the kernel's status word."""


Argument = int | Table | Status
"""A pointer: an address, an offset in the workspace beyond SCRATCH, or one of the others."""


@dataclass(frozen=True, slots=True)
class Call:
    """`grid` programs of a kernel."""

    source: Source
    grid: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A view as an argument of a kernel: strides are elements, 0 along axes where it is broadcast."""

    name: str
    dtype: str
    strides: tuple[int, ...]
    address: int

    @staticmethod
    def of(name: str, view: Array, dtype: str = "") -> Operand:
        """A view with extent 1 where it is broadcast; its elements may be taken for another `dtype` of their size."""
        steps = zip(view.shape, view.strides, strict=True)
        strides = tuple(0 if extent == 1 else stride // view.itemsize for extent, stride in steps)
        return Operand(name, dtype or dtype_name(view), strides, address(view))

    def at(self, subscripts: Mapping[int, str]) -> str:
        """The address of an element, or of a tile of them, by the axes' subscripts; other axes are left out."""
        terms = [self.name]
        for axis, subscript in subscripts.items():
            stride = self.strides[axis]
            if stride:
                terms.append(subscript if stride == 1 else f"{subscript} * {stride}")
        return " + ".join(terms)

    def load(self, subscripts: Mapping[int, str], mask: str, other: str = "0", offset: str = "") -> str:
        """The expression for elements in their compute type, some offset further; `other` where the mask is off, which
        is empty if all is inside."""
        return f"tl.load({self.at(subscripts)}{offset}{masked(mask, other=other)}){self.load_suffix}"

    def store(self, subscripts: Mapping[int, str], value: str, mask: str) -> str:
        """The line that rounds a value and writes it where the mask is on."""
        stored = "tl.int8" if self.dtype == "bool" else LANGUAGE[self.dtype]
        return f"tl.store({self.at(subscripts)}, {value}.to({stored}){masked(mask)})"

    @property
    def load_suffix(self) -> str:
        """What makes of loaded elements values of their compute type."""
        if self.dtype == "bool":
            return " != 0"
        return ".to(tl.float32)" if self.dtype in ("f16", "bf16") else ""


Step = Call | Gemm


@dataclass(frozen=True, slots=True)
class Plan:
    """What a kernel of a device program comes to: steps in order, and the bytes of workspace that they share.

    `complaint` is that of `runtime.kernels.gpu.GpuKernel`; some step has the status word as an argument then.
    """

    steps: tuple[Step, ...]
    scratch: int = 0
    complaint: str | None = None


class Workspace:
    """Hands out workspace while a kernel is planned; `size` is what it takes in all."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    def take(self, shape: Sequence[int], kind: DType) -> Array:
        """A dense array to be, as a layout."""
        address = SCRATCH + self.size
        self.size += -(-max(1, math.prod(shape)) * kind.itemsize // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        return layout(GpuArray(address, tuple(shape), strides_of(shape, kind.itemsize), name_of(kind) or "", 0))


def layout(array: GpuArray) -> Array:
    """A numpy array over the same addresses. Its elements are out of reach: only its shape and strides may be used.

    With it, what checks and transforms views for the CPU's kernels does so for those of a GPU.
    """
    kind = storage(array.dtype)
    bits = "?" if array.dtype == "bool" else f"u{kind.itemsize}"
    holder = _Interface(array.pointer, array.shape, array.strides, np.dtype(bits).str)
    seen: Array = np.asarray(holder).view(kind)
    return seen


def _plain(title: str) -> str:
    """A plan may name indices as it likes; nothing but a comment comes of them."""
    return re.sub(r"[^A-Za-z0-9_.,:;=+>() -]", "?", " ".join(title.split()))[:400]


class _Interface:
    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__: dict[str, Any] = {
            "shape": shape, "strides": strides, "typestr": typestr, "data": (pointer, False), "version": 3,
        }  # fmt: skip


def call(
    name: str,
    text: str,
    arguments: Sequence[Operand | tuple[Argument, str]],
    grid: int,
    warps: int = 4,
    stages: int = 3,
) -> Call:
    """A launch of the kernel `name`; its source gets that name and a digest, so that profilers tell kernels apart.

    Arguments are operands, or other pointers with the type of what they point to.
    """
    pointers = [(a.address, a.dtype) if isinstance(a, Operand) else a for a in arguments]
    aligned = tuple(isinstance(p, Table) or (isinstance(p, int) and p % ALIGNMENT == 0) for p, _ in pointers)
    source = Source(name, text, tuple(dtype for _, dtype in pointers), aligned, warps, stages)
    unique = f"{name}_{source.key[:8]}"
    source = replace(source, name=unique, text=text.replace(f"def {name}(", f"def {unique}("))
    return Call(source, grid, tuple(p for p, _ in pointers))


def masked(*parts: str, other: str = "") -> str:
    """The further arguments of an access where all parts hold, of which those that are empty always do; with `other`,
    what is loaded elsewhere."""
    mask = " & ".join(filter(None, parts))
    return f", mask={mask}{f', other={other}' if other else ''}" if mask else ""


def widening(items: Sequence[Operand], extents: Sequence[int]) -> str:
    """What makes positions 64 bits wide, where offsets of elements take as many; else nothing."""
    reach = [
        sum(abs(s) * (e - 1) for s, e in zip(item.strides, extents, strict=True)) + max(extents, default=1)
        for item in items
    ]
    return ".to(tl.int64)" if max(reach, default=0) >= 1 << 31 else ""


@lru_cache(maxsize=4096)
def _digest(source: Source) -> str:
    parts = [source.name, source.text, source.types, source.aligned, source.warps, source.stages]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def power_of_two(count: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, count - 1).bit_length()


def assembled(
    name: str,
    title: str,
    items: Sequence[Operand],
    extents: Sequence[int],
    lines: Sequence[str],
    grid: int,
    helpers: str = "",
    tables: Sequence[tuple[str, Argument, str]] = (),
    warps: int = 4,
    stages: int = 3,
) -> Call:
    """A call of the kernel made of these lines. Further pointers are tables: name, argument, element type."""
    shapes = " x ".join(map(str, extents)) or "1"
    kinds = ", ".join(f"{item.name} {item.dtype}{list(item.strides)}" for item in items)
    names = ", ".join([*(item.name for item in items), *(table for table, _, _ in tables)])
    body = "\n    ".join(lines)
    text = (
        f'"""{_plain(title)}\n\nExtents {shapes}; strides in elements: {kinds}.\n"""\n\n{HEADER}{helpers}\n\n'
        f"@triton.jit\ndef {name}({names}):\n    {body}\n"
    )
    pointers: list[Operand | tuple[Argument, str]] = [*items, *((argument, kind) for _, argument, kind in tables)]
    return call(name, text, pointers, grid, warps, stages)
