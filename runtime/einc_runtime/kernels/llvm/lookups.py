"""Parts of an array at offsets that are found at run time, copied as machine code: rows of tables, or elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.views import merge_axes

Copy = Callable[[Array], None]
"""Copies the parts at these offsets, in bytes: i64, one after the other."""


def compile_lookup(source: Array, target: Array, before: int, loops: int) -> Copy | None:
    """What copies to each index vector of the target's axes [before..., loops..., behind...] the element of `source`,
    which has extent 1 along the loops, that lies an offset behind it. None where there is no machine code, or where it
    is not worthwhile."""
    if not target.size or not compiler.is_worthwhile(target.size):
        return None
    heads, line, rest = (slice(0, before), slice(before, before + loops), slice(before + loops, None))
    extents, steps = target.shape[line], target.strides[line]
    merged = all(extents[k] == 1 or steps[k] == steps[k + 1] * extents[k + 1] for k in range(loops - 1))
    if not merged:
        return None
    parts = [np.lib.stride_tricks.as_strided(view, target.shape[rest], view.strides[rest]) for view in (source, target)]
    inner, _ = merge_axes(parts, [False] * parts[0].ndim) if parts[0].ndim else ([part[None] for part in parts], [])
    if inner[0].shape[-1] > 1 and any(part.strides[-1] != part.itemsize for part in inner):
        inner = [part[..., None] for part in inner]
    count = inner[0].shape[-1] * target.itemsize
    outer, behind = target.shape[heads], inner[0].shape[:-1]
    arguments = [*outer, int(np.prod(extents)), *behind, count, steps[-1]]
    for view, part in zip((source, target), inner, strict=True):
        arguments += [address(view), *view.strides[heads], *part.strides[:-1]]
    code = _emit_lookup(len(outer), len(behind), count if count in (1, 2, 4, 8) else 0)

    def copy(offsets: Array) -> None:
        compiler.CompiledCall(code, [*arguments, address(offsets)], source, target, offsets)()

    return copy


@compiler.compile_once
def _emit_lookup(leading: int, behind: int, size: int) -> Any:
    """Arguments: extents of the leading axes, how many offsets there are, extents of the axes behind, the bytes that
    are copied at once (`size`, if that is not 0), the stride between parts of the target; the address and the strides
    of the source and of the target; and the address of the offsets."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I64, Emitter, RowOperand

    e = Emitter()
    b = e.b
    heads = [e.argument() for _ in range(leading)]
    number = e.argument()
    extents = [e.argument() for _ in range(behind)]
    count, step = e.argument(), e.argument()
    arrays = [e.operand(leading + behind) for _ in range(2)]
    offsets = e.argument()
    outer = [RowOperand(array.address, array.strides[:leading]) for array in arrays]
    with e.rows(heads, outer) as (source, target), e.loop(number) as j:
        places = b.add(source, e.read(offsets, j, I64)), b.add(target, b.mul(j, step))
        parts = [RowOperand(place, array.strides[leading:]) for place, array in zip(places, arrays, strict=True)]
        with e.rows(extents, parts) as (given, wanted):
            if size:
                kind = ir.IntType(8 * size).as_pointer()
                b.store(b.load(b.inttoptr(given, kind), align=1), b.inttoptr(wanted, kind), align=1)
            else:
                e.copy(wanted, given, count)
    return e.finish()
