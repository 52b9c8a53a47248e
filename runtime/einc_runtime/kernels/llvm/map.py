"""The kernel `map` as machine code: one pass over the operands for a program of any length.

numpy computes what this code cannot: f64, functions without vector code, operands that are not dense along the last
axis (a transpose), and small invocations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Invocation, Kernel
from einc_runtime.kernels.calls.map import MapCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.map import make_map
from einc_runtime.kernels.views import merge_axes
from einc_runtime.plan.scalar_programs import TypedStep
from einc_runtime.plan.schema import INTEGERS

MAP_DTYPES = compiler.COMPILED_FLOATS | {"bool", *INTEGERS}


def build_map(invocation: Invocation[Array]) -> Kernel:
    call = MapCall.parse(invocation)
    if set(call.kinds) <= MAP_DTYPES and compiler.is_worthwhile(call.output.size, invocation.repetitions):
        run = compile_map(call.steps, call.kinds, [*call.views, call.output])
        if run is not None:
            each = 0.1 * len(call.kinds) + 0.05 * len(call.steps)
            return Kernel(lambda _: run, nanoseconds=each * call.output.size)
    return make_map(call)


def compile_map(
    steps: tuple[TypedStep, ...], names: tuple[str, ...], views: Sequence[Array]
) -> compiler.CompiledCall | None:
    """The program over views of one rank (extent 1 where one is broadcast), the last of which it writes. None if there
    is no machine code for it. Callers check that kernels can be compiled."""
    from einc_runtime.kernels.llvm.vectors import is_supported

    steps_of = views[-1].strides
    order = sorted(range(len(steps_of)), key=lambda axis: -steps_of[axis])  # as the result lies in memory
    views = [view.transpose(order) for view in views]
    views, _ = (
        merge_axes(views, [False] * views[0].ndim) if views[0].ndim else ([view.reshape(1) for view in views], [])
    )
    *sources, target = views
    lone = tuple(view.shape[-1] == 1 for view in sources)
    dense = all(
        view.strides[-1] == view.itemsize or is_lone for view, is_lone in zip(views, (*lone, False), strict=True)
    )
    if not dense or not is_supported(steps):
        return None
    leading = target.ndim - 1
    arguments = list(target.shape)
    for view in views:
        arguments += compiler.operand_arguments(view)
    return compiler.CompiledCall(_emit_map(steps, names, lone, leading), arguments, *views)


@compiler.compile_once
def _emit_map(steps: tuple[TypedStep, ...], names: tuple[str, ...], lone: tuple[bool, ...], leading: int) -> Any:
    """Machine code for a program over operands of these types; `lone` are those with one element per row."""
    from einc_runtime.kernels.llvm.emitter import Emitter, Value
    from einc_runtime.kernels.llvm.vectors import evaluate

    e = Emitter()
    *heads, count = [e.argument() for _ in range(leading + 1)]
    operands = [e.operand(leading) for _ in names]
    with e.rows(heads, operands) as rows:
        fixed = {k: e.load_one(rows[k], names[k]) for k, is_lone in enumerate(lone) if is_lone}

        def body(position: Value, mask: Value | None) -> None:
            inputs = [
                fixed[k] if is_lone else e.load(rows[k], position, names[k], mask) for k, is_lone in enumerate(lone)
            ]
            e.store(evaluate(e, steps, inputs), rows[-1], position, names[-1], mask)

        e.sweep(count, body)
    return e.finish()
