"""As many multiply-adds of f32 as a plan's products and attention have, in registers: what the processor allows.

Nothing is read or written, and no element is a maximum, a sum of weights or an exponential. A plan cannot be faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einc_runtime.kernels.base import address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.plan.schema import Bundle
from tests.bench.bandwidth import Run, run_together

PRODUCTS = ("attention", "contract")


def count_operations(bundle: Bundle) -> int:
    """The floating-point operations of products and attention, as the plan counts them; one that several sites repeat
    counts once."""
    return sum(
        sum(function.flops for function in operation.functions) // operation.replicas
        for operation in bundle.operations
        if operation.kernel in PRODUCTS
    )


@compiler.compile_once
def _emit_multiplier(sums: int) -> Any:
    """Arguments: how often each of `sums` vectors is multiplied and added to, and where they go."""
    from einc_runtime.kernels.llvm.emitter import Emitter

    e = Emitter()
    times, target = (e.argument() for _ in range(2))
    places = [e.variable(e.number(float(n))) for n in range(sums)]
    factor = e.load(target, times.type(0), "f32", None)
    with e.loop(times):
        for place in places:
            e.b.store(e.fuse_multiply_add(e.b.load(place), factor, e.number(1.0)), place)
    for n, place in enumerate(places):
        e.store(e.b.load(place), target, times.type(n * LANES), "f32", None)
    return e.finish()


def multiply(operations: int) -> Run:
    """As many floating-point operations, on one thread: more vectors than an instruction takes cycles, which fit into
    the registers."""
    sums = 16 if compiler.has_wide_registers() else 6
    target = np.full(sums * LANES, 0.5, np.float32)
    arguments = [-(-operations // (2 * sums * LANES)), address(target)]
    return compiler.CompiledCall(_emit_multiplier(sums), arguments, target)


def prepared(bundle: Bundle, threads: int):
    calls = [multiply(count_operations(bundle) // threads) for _ in range(threads)]
    return lambda: run_together(calls), lambda: np.zeros(0, np.float32)
