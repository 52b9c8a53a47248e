"""Plans of invocations that differ in addresses alone are made once: layers of a model have thousands of them.

A plan is made for stand-in addresses, far apart and aligned as the real ones are, and then moved to those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import WORKSPACE_ALIGNMENT, GpuArray
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.plan import SCRATCH, Argument, Plan, Step, layout

_APART = 1 << 44
"""Between stand-in addresses: no view reaches so far."""

ADDRESSED = frozenset({"concat"})
"""Kernels whose tables hold addresses."""


class RepeatedPlans:
    """`planned` gives the plan of an invocation; `key` is all of it but its operands."""

    def __init__(self) -> None:
        self._plans: dict[object, Plan] = {}

    def planned(self, key: tuple[object, ...], arrays: Sequence[GpuArray], make: Callable[[list[Array]], Plan]) -> Plan:
        bases = [(n + 1) * _APART + array.pointer % WORKSPACE_ALIGNMENT for n, array in enumerate(arrays)]
        views = tuple((x.shape, x.strides, x.dtype, x.pointer % WORKSPACE_ALIGNMENT) for x in arrays)
        whole = (*key, views)
        if whole not in self._plans:
            stands = [replace(array, pointer=base) for array, base in zip(arrays, bases, strict=True)]
            self._plans[whole] = make([layout(array) for array in stands])
        plan = self._plans[whole]

        def real(address: int) -> int:
            if address >= SCRATCH:
                return address
            number = address // _APART - 1
            return arrays[number].pointer + address - bases[number]

        return replace(plan, steps=tuple(_moved(step, real) for step in plan.steps))


def key_of(invocation: Invocation[GpuArray], architecture: str) -> tuple[object, ...]:
    """All that the plan of an invocation depends on, but its operands."""
    blocks = tuple((block.lower, block.upper) for block in (*invocation.input_blocks, *invocation.output_blocks))
    attributes = repr(sorted(invocation.attributes.items()))
    return invocation.name, attributes, len(invocation.inputs), blocks, architecture


def _moved(step: Step, real: Callable[[int], int]) -> Step:
    if isinstance(step, Gemm):
        added, bias = (real(pointer) if pointer else 0 for pointer in (step.addend, step.bias))
        return replace(step, a=real(step.a), b=real(step.b), c=real(step.c), addend=added, bias=bias)

    def pointer(argument: Argument) -> Argument:
        return real(argument) if isinstance(argument, int) else argument

    return replace(step, arguments=tuple(pointer(argument) for argument in step.arguments))
