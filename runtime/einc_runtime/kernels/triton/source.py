"""Writes sources of Triton kernels: operands as pointers with strides, accesses, and the module around lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc_runtime.dtypes import ITEMSIZE, Array
from einc_runtime.kernels.base import address, dtype_name
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT, Argument, KernelLaunch, KernelSource, Table
from einc_runtime.kernels.triton.narrow_floats import WIDENED_TYPES, write_narrow_helpers

BYTES = {**ITEMSIZE, "i8": 1, "i16": 2}

MOVED_TYPES = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
"""Bytes -> the type of elements that are only moved."""

LANGUAGE = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
    "i32": "tl.int32", "i64": "tl.int64", "bool": "tl.int1",
    "i8": "tl.int8",
}  # fmt: skip
"""The plan's names of types -> their names in sources."""

LINE_ELEMENTS = 1024
"""What a program takes of a long line at a time, or writes of one: eight elements for each of 128 threads."""

TRITON_IMPORTS = "import triton\nimport triton.language as tl\n"


@dataclass(frozen=True, slots=True)
class PointerOperand:
    """A view as an argument of a kernel. Strides are in elements, and 0 along axes where the view is broadcast."""

    name: str
    dtype: str
    strides: tuple[int, ...]
    address: int

    @staticmethod
    def of(name: str, view: Array, dtype: str = "") -> PointerOperand:
        """From a view with extent 1 where it is broadcast; `dtype` replaces its type by another of the same size."""
        steps = zip(view.shape, view.strides, strict=True)
        strides = tuple(0 if extent == 1 else stride // view.itemsize for extent, stride in steps)
        return PointerOperand(name, dtype or dtype_name(view), strides, address(view))

    def at(self, subscripts: Mapping[int, str]) -> str:
        """The address of an element or of a tile, by the subscripts of the axes; axes of stride 0 are left out."""
        terms = [self.name]
        for axis, subscript in subscripts.items():
            stride = self.strides[axis]
            if stride:
                terms.append(subscript if stride == 1 else f"{subscript} * {stride}")
        return " + ".join(terms)

    def load(self, subscripts: Mapping[int, str], mask: str, fallback: str = "0", offset: str = "") -> str:
        """The expression that loads elements in their compute type, and `fallback` where the mask is off. An empty mask
        is on everywhere; `offset` is added to the address."""
        return self.convert(f"tl.load({self.at(subscripts)}{offset}{mask_arguments(mask, fallback=fallback)})")

    def store(self, subscripts: Mapping[int, str], value: str, mask: str, *, offset: str = "") -> str:
        """The line that rounds a value to the stored type and writes it where the mask is on; `offset` is added to the
        address."""
        stored = "tl.int8" if self.dtype == "bool" else LANGUAGE.get(self.dtype)
        rounded = f"narrow_{self.dtype}({value})" if stored is None else f"{value}.to({stored})"
        return f"tl.store({self.at(subscripts)}{offset}, {rounded}{mask_arguments(mask)})"

    def convert(self, loaded: str) -> str:
        """The expression for loaded elements in their compute type."""
        if self.dtype == "bool":
            return f"{loaded} != 0"
        if self.dtype in WIDENED_TYPES:
            return f"widen_{self.dtype}({loaded})"
        return f"{loaded}.to(tl.float32)" if self.dtype in ("f16", "bf16") else loaded


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a kernel has beside its operands and its lines.

    `helpers` is the source of functions that the lines call. `tables` are further pointers: name, argument and element
    type. `warps` and `stages` are those of `KernelSource`.
    """

    helpers: str = ""
    tables: Sequence[tuple[str, Argument, str]] = ()
    warps: int = 4
    stages: int = 3


def _sanitize_title(title: str) -> str:
    """Removes what could end the comment: a plan may give indices any names."""
    return re.sub(r"[^A-Za-z0-9_.,:;=+>() -]", "?", " ".join(title.split()))[:400]


def make_launch(
    name: str,
    text: str,
    arguments: Sequence[PointerOperand | tuple[Argument, str]],
    grid: int,
    warps: int = 4,
    stages: int = 3,
) -> KernelLaunch:
    """A launch of the kernel `name`. A digest is appended to the name, so that profilers can distinguish kernels.

    Arguments are operands, or other pointers with the type of their elements.
    """
    pointers = [(a.address, a.dtype) if isinstance(a, PointerOperand) else a for a in arguments]
    aligned = tuple(isinstance(p, Table) or (isinstance(p, int) and p % POINTER_ALIGNMENT == 0) for p, _ in pointers)
    source = KernelSource(name, text, tuple(dtype for _, dtype in pointers), aligned, warps, stages)
    return KernelLaunch(source.renamed(name), grid, tuple(p for p, _ in pointers))


def mask_arguments(*parts: str, fallback: str = "") -> str:
    """The `mask` argument of an access, of conditions of which empty ones are ignored, and what is read elsewhere."""
    mask = " & ".join(filter(None, parts))
    return f", mask={mask}{f', other={fallback}' if fallback else ''}" if mask else ""


def index_cast(items: Sequence[PointerOperand], extents: Sequence[int]) -> str:
    """The cast that makes positions 64 bits wide if offsets need it; else the empty text."""
    reach = [
        sum(abs(s) * (e - 1) for s, e in zip(item.strides, extents, strict=True)) + max(extents, default=1)
        for item in items
    ]
    return ".to(tl.int64)" if max(reach, default=0) >= 1 << 31 else ""


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def assemble(
    name: str,
    title: str,
    items: Sequence[PointerOperand],
    extents: Sequence[int],
    lines: Sequence[str],
    grid: int,
    options: LaunchOptions | None = None,
) -> KernelLaunch:
    """A launch of the kernel whose body these lines are."""
    options = options or LaunchOptions()
    tables = options.tables
    helpers = write_narrow_helpers([options.helpers, *lines]) + options.helpers
    shapes = " x ".join(map(str, extents)) or "1"
    kinds = ", ".join(f"{item.name} {item.dtype}{list(item.strides)}" for item in items)
    names = ", ".join([*(item.name for item in items), *(table for table, _, _ in tables)])
    body = "\n    ".join(lines)
    text = (
        f'"""{_sanitize_title(title)}\n\nExtents {shapes}; strides in elements: {kinds}.\n"""\n\n'
        f"{TRITON_IMPORTS}{helpers}\n\n"
        f"@triton.jit\ndef {name}({names}):\n    {body}\n"
    )
    pointers: list[PointerOperand | tuple[Argument, str]] = [
        *items,
        *((argument, kind) for _, argument, kind in tables),
    ]
    return make_launch(name, text, pointers, grid, options.warps, options.stages)
