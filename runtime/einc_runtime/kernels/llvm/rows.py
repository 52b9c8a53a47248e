"""The kernels `rmsnorm`, `layernorm` and `softmax` as machine code, a few passes over a row in the cache; `meanpool`.

Sums are in f64, so rows may have any length. numpy computes what this code cannot, as in `map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import Invocation, Kernel, address
from einc_runtime.kernels.calls.rows import MeanPoolCall, NormCall, SoftmaxCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy import rows as in_numpy
from einc_runtime.kernels.numpy.rows import make_norm, make_softmax
from einc_runtime.kernels.views import merge_leading_axes


def build_norm(invocation: Invocation[Array]) -> Kernel:
    call = NormCall.parse(invocation)
    return compile_rows(invocation.name, (call.eps, call.offset), call.source, call.vectors, call.target) or make_norm(
        call
    )


def build_softmax(invocation: Invocation[Array]) -> Kernel:
    call = SoftmaxCall.parse(invocation)
    last = call.axis == call.source.ndim - 1
    compiled = compile_rows("softmax", (0.0, 0.0), call.source, (), call.target) if last else None
    return compiled or make_softmax(call)


def build_meanpool(invocation: Invocation[Array]) -> Kernel:
    call = MeanPoolCall.parse(invocation)
    source, mask, target, spans = call.source, call.mask, call.target, call.spans
    kind = find_dtype_name(target.dtype)
    dense = all(array.strides[-1] == array.itemsize for array in (source, target))
    if kind not in compiler.COMPILED_FLOATS or not (dense and source.size and compiler.is_worthwhile(source.size)):
        return in_numpy.build_meanpool(invocation)
    arguments = [len(spans), address(spans), source.shape[1], address(mask), *mask.strides]
    arguments += [n for array in (source, target) for n in (address(array), array.strides[0])]
    run = compiler.CompiledCall(_emit_meanpool(kind), arguments, spans, source, mask, target)
    return Kernel(lambda _: run, nanoseconds=0.3 * source.size)


@compiler.compile_once
def _emit_meanpool(kind: str) -> Any:
    """Arguments: the number of sequences, the address of a table with the first token of each and its end, the elements
    of a token, and of the mask, of the tokens and of the results the address and the step in bytes."""
    from einc_runtime.kernels.llvm.emitter import F32, F64, I8, I64, Emitter, RowOperand, Value, vector

    e = Emitter()
    b = e.b
    sequences, spans, width = (e.argument() for _ in range(3))
    mask, source, target = (RowOperand(e.argument(), [e.argument()]) for _ in range(3))
    kept, total = e.variable(I64(0)), e.variable(e.number(0.0, F64))
    with e.loop(sequences) as sequence:
        first, end = (e.read(spans, b.add(b.mul(sequence, I64(2)), I64(n)), I64) for n in range(2))

        def is_kept(token: Value) -> Value:
            flag = e.read(b.add(mask.address, b.mul(token, mask.strides[0])), I64(0), I8)
            return b.icmp_unsigned("!=", flag, I8(0))

        b.store(I64(0), kept)
        with e.span(first, end) as token:
            b.store(b.add(b.load(kept), b.zext(is_kept(token), I64)), kept)
        some = b.icmp_signed(">", b.load(kept), I64(0))
        count = e.broadcast(b.sitofp(b.select(some, b.load(kept), I64(1)), F64))
        result = b.add(target.address, b.mul(sequence, target.strides[0]))

        def average(position: Value, part: Value | None) -> None:
            b.store(e.number(0.0, F64), total)
            with e.span(first, end) as token, b.if_then(is_kept(token)):
                row = b.add(source.address, b.mul(token, source.strides[0]))
                value = b.fpext(e.load(row, position, kind, part), vector(F64))
                b.store(b.fadd(b.load(total), value), total)
            mean = b.fptrunc(b.fdiv(b.load(total), count), vector(F32))
            e.store(mean, result, position, kind, part)

        e.sweep(width, average)
    return e.finish()


def compile_rows(
    name: str, numbers: tuple[float, float], source: Array, vectors: Sequence[Array], target: Array
) -> Kernel | None:
    """The compiled kernel, or None where there is no machine code; `numbers` are eps and offset."""
    kind = find_dtype_name(target.dtype)
    if kind not in compiler.COMPILED_FLOATS or not compiler.is_worthwhile(target.size):
        return None
    views = merge_leading_axes([source, target])
    if any(array.strides[-1] != array.itemsize for array in (*views, *vectors)):
        return None
    leading = views[0].ndim - 1
    arguments = [*target.shape[-1:], *views[0].shape[:-1]]
    for view in views:
        arguments += compiler.operand_arguments(view)
    arguments += [address(vector) for vector in vectors]
    run = compiler.CompiledCall(_emit_rows(name, kind, leading, *numbers), arguments, *views, *vectors)
    return Kernel(lambda _: run, nanoseconds=(0.5 + len(vectors) * 0.3 if vectors else 2.0) * target.size)


@compiler.compile_once
def _emit_rows(name: str, kind: str, leading: int, eps: float, offset: float) -> Any:
    from einc_runtime.kernels.llvm.emitter import F32, Emitter, Value
    from einc_runtime.kernels.llvm.vectors import decay

    e = Emitter()
    count, *heads = [e.argument() for _ in range(leading + 1)]
    operands = [e.operand(leading) for _ in range(2)]
    vectors = [e.argument() for _ in range({"rmsnorm": 1, "layernorm": 2, "softmax": 0}[name])]
    extent = e.broadcast(e.b.sitofp(count, F32))
    with e.rows(heads, operands) as (source, target):

        def read(position: Value, mask: Value | None) -> Value:
            return e.load(source, position, kind, mask)

        if name == "softmax":
            largest = e.fold(count, e.number(-math.inf), e.larger, read)

            def weight(position: Value, mask: Value | None) -> Value:
                value = decay(e, e.b.fsub(read(position, mask), largest))
                if kind == "f32":  # its weight is kept where the result will be: no exponential is computed twice
                    e.store(value, target, position, kind, mask)
                return value

            def find_weight(position: Value, mask: Value | None) -> Value:
                return e.load(target, position, kind, mask) if kind == "f32" else weight(position, mask)

            scale, term = e.b.fdiv(e.number(1.0), e.total(count, weight)), find_weight
        else:
            middle = e.b.fdiv(e.total(count, read), extent) if name == "layernorm" else None

            def center(position: Value, mask: Value | None) -> Value:
                value = read(position, mask)
                return value if middle is None else e.b.fsub(value, middle)

            def square(position: Value, mask: Value | None) -> Value:
                value = center(position, mask)
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
