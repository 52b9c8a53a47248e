"""The kernels `rmsnorm`, `layernorm` and `softmax` as machine code, a few passes over a row in the cache.

Sums are in f64, so rows may have any length. numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from einc_runtime.dtypes import ITEMSIZE, Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.rows import NormCall, SoftmaxCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.rows import make_norm, make_softmax
from einc_runtime.kernels.views import merge_leading_axes

BYTES_AHEAD = 8192
"""From what is read first of a row to what is fetched meanwhile: rows that follow, whose pages a processor begins late
by itself. Softmax takes 0.74 times as long on an Intel Xeon (family 6, model 167), and layernorm 0.79 times."""


def build_norm(invocation: Invocation[Array]) -> Kernel:
    call = NormCall.parse(invocation)
    return compile_rows(invocation, (call.eps, call.offset), call.source, call.vectors, call.target) or make_norm(call)


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    call = SoftmaxCall.parse(invocation)
    last = call.axis == call.source.ndim - 1
    compiled = compile_rows(invocation, (0.0, 0.0), call.source, (), call.target) if last else None
    return compiled or make_softmax(call)


def compile_rows(
    invocation: Invocation[Array],
    numbers: tuple[float, float],
    source: Array,
    vectors: Sequence[Array],
    target: Array,
) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code; `numbers` are eps and offset."""
    name, kind = invocation.name, find_dtype_name(target.dtype)
    if kind not in compiler.COMPILED_FLOATS or not compiler.is_worthwhile(target.size, invocation.repetitions):
        return None
    views = merge_leading_axes([source, target])
    if any(array.strides[-1] != array.itemsize for array in (*views, *vectors)):
        return None
    leading = views[0].ndim - 1
    arguments = [*target.shape[-1:], *views[0].shape[:-1]]
    for view in views:
        arguments += compiler.operand_arguments(view)
    arguments += [address(vector) for vector in vectors]
    run = compiler.CompiledCall(_emit_rows(name, kind, leading, len(vectors), *numbers), arguments, *views, *vectors)
    return Kernel(lambda _: run, nanoseconds=(2.0 if name == "softmax" else 0.5 + len(vectors) * 0.3) * target.size)


@compiler.compile_once
def _emit_rows(name: str, kind: str, leading: int, count_of_vectors: int, eps: float, offset: float) -> Any:
    from einc_runtime.kernels.llvm.emitter import F32, I64, Emitter, Value
    from einc_runtime.kernels.llvm.vectors import decay

    e = Emitter()
    count, *heads = [e.argument() for _ in range(leading + 1)]
    operands = [e.operand(leading) for _ in range(2)]
    vectors = [e.argument() for _ in range(count_of_vectors)]
    extent = e.broadcast(e.b.sitofp(count, F32))
    with e.rows(heads, operands) as (source, target):

        def read(position: Value, mask: Value | None) -> Value:
            return e.load(source, position, kind, mask)

        def read_first(position: Value, mask: Value | None) -> Value:
            byte = e.b.mul(position, I64(ITEMSIZE[kind]))
            e.prefetch(e.b.add(source, I64(BYTES_AHEAD)), byte)
            return read(position, mask)

        if name == "softmax":
            largest = e.fold(count, e.number(-math.inf), e.larger, read_first)

            def weight(position: Value, mask: Value | None) -> Value:
                value = decay(e, e.b.fsub(read(position, mask), largest))
                if kind == "f32":  # its weight is kept where the result will be: no exponential is computed twice
                    e.store(value, target, position, kind, mask)
                return value

            def find_weight(position: Value, mask: Value | None) -> Value:
                return e.load(target, position, kind, mask) if kind == "f32" else weight(position, mask)

            scale, term = e.b.fdiv(e.number(1.0), e.total(count, weight)), find_weight
        else:
            middle = e.b.fdiv(e.total(count, read_first), extent) if name == "layernorm" else None

            def center(position: Value, mask: Value | None) -> Value:
                value = read(position, mask)
                return value if middle is None else e.b.fsub(value, middle)

            def square(position: Value, mask: Value | None) -> Value:
                value = center(position, mask) if middle is not None else read_first(position, mask)
                return e.b.fmul(value, value)

            mean = e.b.fdiv(e.total(count, square), extent)
            root = e.square_root(e.b.fadd(mean, e.number(eps)))
            scale, term = e.b.fdiv(e.number(1.0), root), center

        def write(position: Value, mask: Value | None) -> None:
            value = e.b.fmul(term(position, mask), scale)
            if vectors:
                gain = e.load(vectors[0], position, kind, mask)
                value = e.b.fmul(value, e.b.fadd(gain, e.number(offset)) if offset else gain)
            if len(vectors) > 1:
                value = e.b.fadd(value, e.load(vectors[1], position, kind, mask))
            e.store(value, target, position, kind, mask)

        e.sweep(count, write)
    return e.finish()
