"""The kernels of launches that run several tasks of a plan (`plan/launches.py` says which)."""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.few_products import build_few_products
from einc_runtime.kernels.triton.launches import LaunchSequence
from einc_runtime.kernels.triton.places import build_places
from einc_runtime.kernels.triton.row_chain import build_row_chain
from einc_runtime.plan.launches import LaunchKind


def build_joint_launch(
    kind: LaunchKind, parts: Sequence[Invocation[Array]], kept: Sequence[bool], architecture: str
) -> LaunchSequence | None:
    """One launch for all parts, of which those that are `kept` must write their results. None where there is no kernel
    for them."""
    if kind == "products":
        return build_few_products(parts, architecture)
    if kind == "rows":
        return build_row_chain(parts, kept)
    return build_places(parts, kept) if kind == "places" else None


def can_join(parts: Sequence[Invocation[GpuArray]], kept: Sequence[bool]) -> bool:
    """Whether parts may be one launch, whose programs run in any order: none is of a reproducible plan, and none writes
    bytes that any part reads or writes, but for what is handed on, and for results in place of an operand of the same
    part."""
    return not any(part.is_reproducible for part in parts) and _are_apart(parts, kept)


def _are_apart(parts: Sequence[Invocation[GpuArray]], kept: Sequence[bool]) -> bool:
    for number, (part, is_kept) in enumerate(zip(parts, kept, strict=True)):
        for written in part.outputs if is_kept else ():
            for position, against in enumerate(parts):
                later = position > number
                for read in against.inputs:
                    same = (read.pointer, read.shape, read.strides) == (written.pointer, written.shape, written.strides)
                    if not (same and position >= number) and overlap(written, read):
                        return False
                if later and any(overlap(written, result) for result in against.outputs):
                    return False
    return True


def overlap(first: GpuArray, second: GpuArray) -> bool:
    """Whether the runs of bytes from the first to the last element of two arrays have some in common."""
    ends = [
        array.pointer + array.itemsize + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
        for array in (first, second)
    ]
    return first.device == second.device and first.pointer < ends[1] and second.pointer < ends[0]
