"""Reads weights into the second cache before the product that needs them runs (`plan/early_reads.py`).

A thread asks for a line of the cache. The instruction is a hint: it returns nothing, and memory that it names is not
changed. It is inline assembly, so neither Triton's interpreter nor numpy can run the source.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.source import PointerOperand, assemble

LINE_BYTES = 128
"""A line of the second cache of NVIDIA's GPUs."""

PROGRAM_LINES = 256
"""Lines that a program asks for: two for each thread of four warps."""

PROGRAM_BYTES = LINE_BYTES * PROGRAM_LINES

_ASSEMBLY = "{ mov.b32 $0, 0; prefetch.global.L2 [$1]; }"


def build_early_read(views: Sequence[GpuArray], limit: int) -> LaunchSequence | None:
    """A launch for every view that is one run of bytes: its first ones, a whole number of programs. All together ask
    for at most `limit` bytes, in parts as the sizes of the views are. None where that is nothing."""
    runs = [view for view in views if view.compact]
    size = sum(view.nbytes for view in runs)
    part = min(1.0, limit / size) if size else 0.0
    launches = []
    for view in runs:
        programs = int(part * view.nbytes) // PROGRAM_BYTES
        if programs:
            lines = [
                f"first = x.to(tl.int64) + tl.program_id(0).to(tl.int64) * {PROGRAM_BYTES}",
                f"line = first + tl.arange(0, {PROGRAM_LINES}) * {LINE_BYTES}",
                f"tl.inline_asm_elementwise({_ASSEMBLY!r}, '=r,l', [line], dtype=tl.int32, is_pure=False, pack=1)",
            ]
            operand = PointerOperand("x", "i8", (1,), view.pointer)
            title = "reads bytes into the second cache"
            launches.append(assemble("early_read", title, [operand], (PROGRAM_BYTES,), lines, programs))
    return LaunchSequence(tuple(launches)) if launches else None
