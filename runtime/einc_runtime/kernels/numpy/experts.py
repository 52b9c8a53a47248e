"""The kernel `expert_matmul` {experts} in numpy: one product for each expert that a token picked.

Slots are sorted by the expert that they picked, and those of one expert keep their order. Their rows are gathered,
multiplied as the kernel `contract` does it, or `quantized_contract`, and put where they belong. So the work is that of
what is picked. How many rows an expert has is known only when the kernel runs: products are prepared then, and kept for
the next time that about as many rows come to the same expert.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel, KernelBuilder, Run, ScratchAllocator, view_as_integers
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.numpy.contract import build_contract
from einc_runtime.kernels.numpy.moves import take_along
from einc_runtime.kernels.numpy.quantized import build_quantized_contract

EXPERT_ROWS = 1024
"""Rows of an expert that are multiplied at a time."""

EXPERT_ROW_MULTIPLE = 8
"""Up to so many rows of an expert, a product has as many; else a multiple of this, so that fewer are prepared."""

KEPT = 256
"""Products that a kernel keeps prepared for each worker, some kilobytes each."""


def build_expert_matmul(invocation: Invocation[Array]) -> Kernel:
    call = ExpertMatmulCall.parse(invocation)
    return build_products(call, build_contract if isinstance(call.weight, np.ndarray) else build_quantized_contract)


def build_products(call: ExpertMatmulCall, multiply: KernelBuilder) -> Kernel:
    """The kernel; `multiply` builds that of `ExpertMatmulCall.multiply`, also while the kernel runs.

    It raises ValueFault for a pick that is no expert.
    """
    most, depth, width = min(call.picks.size, EXPERT_ROWS), call.weight.shape[2], call.weight.shape[1]
    scratch = ScratchAllocator()
    gathered, results = scratch.take((most, depth), call.rows.dtype), scratch.take((most, width), call.target.dtype)
    sample = np.empty((most, depth), call.rows.dtype), np.empty((most, width), call.target.dtype)
    within = multiply(call.multiply(0, *sample)).scratch

    def bind(memory: Array) -> Run:
        remaining = memory[scratch.size : scratch.size + within]
        return _ExpertProducts(call, multiply, gathered.of(memory), results.of(memory), remaining).run

    return Kernel(bind, scratch.size + within, call.multiplications / 20 + 1.0 * call.target.size)


class _ExpertProducts:
    """The kernel in the memory of a worker."""

    def __init__(
        self, call: ExpertMatmulCall, multiply: KernelBuilder, gathered: Array, results: Array, scratch: Array
    ) -> None:
        self.call, self.multiply, self.scratch = call, multiply, scratch
        self.gathered, self.results = gathered, results
        self.products: OrderedDict[tuple[int, int], Run] = OrderedDict()
        self.bits, self.goal = view_as_integers(call.rows), view_as_integers(call.target)

    def run(self) -> None:
        call = self.call
        call.require_picks()
        numbers = call.picks.astype(np.int64).ravel() - call.lower
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(call.count + 1)).tolist()
        if ends[-1] - ends[0] < len(order):
            self.goal[...] = 0  # what others contribute
        slots = call.picks.shape[1]
        for expert in range(call.count):
            for start in range(ends[expert], ends[expert + 1], EXPERT_ROWS):
                token, slot = np.divmod(order[start : min(start + EXPERT_ROWS, ends[expert + 1])], slots)
                self._multiply(expert, token, slot)

    def _multiply(self, expert: int, token: Array, slot: Array) -> None:
        """The product of one expert with the rows of some slots."""
        count = len(token)
        gathered = view_as_integers(self.gathered[:count])
        if self.bits.strides[1] == 0 or self.bits.shape[1] == 1:
            take_along(self.bits[:, 0], 0, token, gathered)
        else:
            np.copyto(gathered, self.bits[token, slot])
        self._prepare(expert, min(_round_up(count), len(self.gathered)))()
        self.goal[token, slot] = view_as_integers(self.results[:count])

    def _prepare(self, expert: int, count: int) -> Run:
        """The product of so many rows with an expert; what the last of them are and become is not looked at."""
        key = (expert, count)
        if key in self.products:
            self.products.move_to_end(key)
            return self.products[key]
        kernel = self.multiply(self.call.multiply(expert, self.gathered[:count], self.results[:count]))
        fits = kernel.scratch <= self.scratch.size  # it does, unless fewer rows are multiplied in another way
        memory = self.scratch if fits else np.empty(kernel.scratch, np.uint8)
        run = self.products[key] = kernel.bind(memory)
        if len(self.products) > KEPT:
            self.products.popitem(last=False)
        return run


def _round_up(count: int) -> int:
    """The number of rows of the product that is prepared for so many."""
    step = max(EXPERT_ROW_MULTIPLE, 1 << (count - 1).bit_length() >> 3)
    return count if count <= EXPERT_ROW_MULTIPLE else -(-count // step) * step
