"""Sums over GPUs by the switches between them: `multimem.ld_reduce` reads from a multicast object, on Hopper and later.

A thread asks for 16 bytes at a time, and stores their sums. They are added in f32 and rounded once; in which order, the
hardware does not say. The instruction is inline assembly, so neither Triton's interpreter nor numpy can run the source.
"""

from __future__ import annotations

import math

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import dtype_name
from einc_runtime.kernels.triton.launches import POINTER_ALIGNMENT, LaunchSequence
from einc_runtime.kernels.triton.source import PointerOperand, assemble
from einc_runtime.kernels.views import merge_axes

ADDITIONS = {"f32": "add.v4.f32", "f16": "add.acc::f32.v4.f16x2", "bf16": "add.acc::f32.v4.bf16x2"}
"""By the type of elements: the end of the instruction that adds 16 bytes of them."""

PROGRAM_UNITS = 256
"""Units of 16 bytes in a program: two for each thread."""

FIRST_CAPABILITY = (9, 0)


def build_multicast_sum(read: Array, write: Array, capability: tuple[int, int]) -> LaunchSequence | None:
    """One launch; None where elements are no floats of at most 32 bits, or their rows no multiples of 16 bytes."""
    kind = dtype_name(read)
    if capability < FIRST_CAPABILITY or kind not in ADDITIONS or dtype_name(write) != kind or read.shape != write.shape:
        return None
    (source, target), _ = merge_axes([read, write], [False] * read.ndim)
    if not source.ndim:
        return None
    per = POINTER_ALIGNMENT // source.itemsize
    items = [PointerOperand.of("x", source), PointerOperand.of("y", target)]
    rows = [stride for item in items for stride in item.strides[:-1]]
    if any(item.strides[-1] != 1 or item.address % POINTER_ALIGNMENT for item in items) or source.shape[-1] % per:
        return None
    if any(stride % per for stride in rows):
        return None
    extents = (*source.shape[:-1], source.shape[-1] // per)
    total = math.prod(extents)
    lines = [
        f"unit = tl.program_id(0).to(tl.int64) * {PROGRAM_UNITS} + tl.arange(0, {PROGRAM_UNITS})",
        f"inside = (unit < {total}).to(tl.int32)",
        "source = tl.zeros([1], tl.int64)",
        "target = tl.zeros([1], tl.int64)",
    ]
    for axis in reversed(range(len(extents))):
        lines.append(f"place = unit % {extents[axis]}")
        for item, name in zip(items, ("source", "target"), strict=True):
            step = (item.strides[axis] if axis < len(extents) - 1 else per) * source.itemsize
            lines.append(f"{name} = {name} + place * {step}")
        lines.append(f"unit = unit // {extents[axis]}")
    lines += [
        "source = source + x.to(tl.int64)",
        "target = target + y.to(tl.int64)",
        f"tl.inline_asm_elementwise({_assembly(kind)!r}, '=r,l,l,r', [source, target, inside], dtype=tl.int32, "
        "is_pure=False, pack=1)",
    ]
    title = "the sum of what all devices hold, added by the switches between them"
    launch = assemble("multicast_sum", title, items, source.shape, lines, -(-total // PROGRAM_UNITS))
    return LaunchSequence((launch,))


def _assembly(kind: str) -> str:
    """Reads the sums of 16 bytes at $1 and writes them to $2, if $3 is not 0; $0 is of no use.

    What other kernels have written to the memory by other addresses is seen after the fence.
    """
    registers = "{a, b, c, d}"
    return " ".join(
        (
            "{ .reg .pred p; .reg .b32 a, b, c, d; setp.ne.b32 p, $3, 0; mov.b32 $0, 0;",
            "fence.proxy.alias;",
            f"@p multimem.ld_reduce.relaxed.sys.global.{ADDITIONS[kind]} {registers}, [$1];",
            f"@p st.global.v4.b32 [$2], {registers}; }}",
        )
    )
