"""The kernel `map`: one code for every element, wherever it is and however operands lie in memory.

That is machine code for all invocations of a program that it supports, and numpy for all invocations of another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm import map as compiled
from einc_runtime.kernels.numpy import map as plain
from einc_runtime.kernels.reproducible.dense import build_on_dense
from einc_runtime.plan.scalar_functions import CAST
from einc_runtime.plan.scalar_programs import TypedStep


def build_map(invocation: Invocation[Array]) -> Kernel:
    call = MapCall.parse(invocation)
    if all(step.function == "copy" or step.function.startswith(CAST) for step in call.steps):
        return compiled.build_map(invocation)  # moves and rounds: all code does the same
    return make_map(call.steps, call.kinds, call.views, call.output)


def make_map(steps: tuple[TypedStep, ...], kinds: tuple[str, ...], views: Sequence[Array], output: Array) -> Kernel:
    """The program over views that all have the dimensions of the output, with extent 1 where one is broadcast."""
    machine_code = _has_machine_code(steps, kinds)
    if machine_code:
        run = compiled.compile_map(steps, kinds, [*views, output])
        if run is not None:
            each = 0.1 * len(kinds) + 0.05 * len(steps)
            return Kernel(lambda _: run, nanoseconds=each * output.size)

    def build(inputs: Sequence[Array], outputs: Sequence[Array]) -> Kernel:
        if machine_code:
            return make_map(steps, kinds, inputs, outputs[0])
        return plain.make_map(MapCall(steps, tuple(inputs), outputs[0], kinds, (), ""))

    return build_on_dense(views, [output], build)


def _has_machine_code(steps: Sequence[TypedStep], kinds: Sequence[str]) -> bool:
    if not set(kinds) <= compiled.MAP_DTYPES or not compiler.is_available():
        return False
    from einc_runtime.kernels.llvm.vectors import is_supported

    return is_supported(steps)
