"""Operators of ONNX that aggregate: reductions, running sums, softmax, the largest elements, and norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.extents import multiply_extents
from einc.importers.arrays.moving import pad, reshape
from einc.importers.arrays.reducing import (
    accumulate,
    batch_norm,
    find_extreme,
    group_norm,
    layer_norm,
    log_softmax,
    reduce,
    rms_norm,
    softmax,
    topk,
    variance,
)
from einc.importers.arrays.values import UnsupportedError, normalize_axis
from einc.importers.onnx.nodes import Convert, OnnxNode, Results


def _reduce(operation: str, before: Sequence[str] = (), after: Sequence[str] = ()) -> Convert:
    """A reduction, of elements after some functions, followed by others."""

    def convert(node: OnnxNode) -> Results:
        x, axes = node.input(0), node.axes(1)
        if not axes:
            axes = [] if node.integer("noop_with_empty_axes") else list(range(x.rank))
        for function in before:
            x = apply(node.program, function, x)
        if axes:
            x = reduce(node.program, x, operation, axes, bool(node.integer("keepdims", 1)), node.hint)
        for function in after:
            x = apply(node.program, function, x, hint=node.hint)
        return x

    return convert


def _log_sum_exp(node: OnnxNode) -> Results:
    x, axes = node.input(0), node.axes(1)
    program = node.program
    if not axes and node.integer("noop_with_empty_axes"):
        return x
    axes = axes or list(range(x.rank))
    top = reduce(program, x, "max", axes, True)
    total = reduce(program, apply(program, "exp", apply(program, "sub", x, top)), "sum", axes, True)
    result = apply(program, "add", apply(program, "log", total), top, hint=node.hint)
    if node.integer("keepdims", 1):
        return result
    gone = {normalize_axis(axis, x.rank) for axis in axes}
    return reshape(program, result, [extent for k, extent in enumerate(x.shape) if k not in gone], node.hint)


def _extreme(largest: bool) -> Convert:
    def convert(node: OnnxNode) -> Results:
        x = node.input(0)
        keep, last = bool(node.integer("keepdims", 1)), bool(node.integer("select_last_index"))
        return find_extreme(node.program, x, node.integer("axis"), keep, largest, last, node.hint)

    return convert


def _topk(node: OnnxNode) -> Results:
    count = node.integer("k") if node.opset < 10 else node.known_ints(1, "k")[0]
    return topk(
        node.program, node.input(0), count, node.integer("axis", -1), bool(node.integer("largest", 1)), node.hint
    )


def _softmax(function: str) -> Convert:
    call = {"softmax": softmax, "log_softmax": log_softmax}[function]

    def convert(node: OnnxNode) -> Results:
        x = node.input(0)
        if node.opset >= 13:
            return call(node.program, x, node.integer("axis", -1), node.hint)
        axis = normalize_axis(node.integer("axis", 1), x.rank)
        if axis == x.rank - 1:
            return call(node.program, x, -1, node.hint)
        flat = reshape(node.program, x, [*x.shape[:axis], multiply_extents(x.shape[axis:])])
        return reshape(node.program, call(node.program, flat, -1, node.hint), x.shape, node.hint)

    return convert


def _accumulate(operation: str) -> Convert:
    def convert(node: OnnxNode) -> Results:
        axis = node.known_ints(1, "axis")[0]
        exclusive, reverse = bool(node.integer("exclusive")), bool(node.integer("reverse"))
        return accumulate(node.program, node.input(0), operation, axis, exclusive, reverse, node.hint)

    return convert


def _batch_norm(node: OnnxNode) -> Results:
    x, program = node.input(0), node.program
    gain, bias, old_mean, old_var = (node.input(k) for k in range(1, 5))
    eps = node.number("epsilon", 1e-5)
    if not node.integer("training_mode"):
        return batch_norm(program, x, old_mean, old_var, gain, bias, eps, node.hint)
    axes = [axis for axis in range(x.rank) if axis != 1]
    mean, var = (reshape(program, part, [x.shape[1]]) for part in variance(program, x, axes))
    momentum = node.number("momentum", 0.9)
    results = [batch_norm(program, x, mean, var, gain, bias, eps, node.hint)]
    for old, new in ((old_mean, mean), (old_var, var)):
        kept = apply(program, "mul", old, momentum)
        results.append(apply(program, "add", kept, apply(program, "mul", new, 1 - momentum)))
    return tuple(results)


def _instance_norm(node: OnnxNode) -> Results:
    x = node.input(0)
    eps = node.number("epsilon", 1e-5)
    return group_norm(node.program, x, x.shape[1], node.input(1), node.input(2), eps, node.hint)


def _group_norm(node: OnnxNode) -> Results:
    x, groups, eps = node.input(0), node.integer("num_groups"), node.number("epsilon", 1e-5)
    return group_norm(node.program, x, groups, node.input(1), node.input(2), eps, node.hint)


def _layer_norm(node: OnnxNode) -> Results:
    x, program = node.input(0), node.program
    axis, eps = normalize_axis(node.integer("axis", -1), x.rank), node.number("epsilon", 1e-5)
    gain, bias = node.input(1), node.optional(2)
    if axis == x.rank - 1 and len(node.outputs) == 1 and x.type.is_float and gain.rank == 1:
        return layer_norm(program, x, gain, bias, eps, node.hint)
    wide = cast(program, x, ElementType.F32) if node.integer("stash_type", 1) == 1 and x.type.bits < 32 else x
    mean, var = variance(program, wide, range(axis, x.rank), node.hint)
    scale = apply(program, "rsqrt", apply(program, "add", var, eps))
    normal = cast(program, apply(program, "mul", apply(program, "sub", wide, mean), scale), x.type)
    result = apply(program, "mul", normal, gain, hint=node.hint)
    if bias is not None:
        result = apply(program, "add", result, bias, hint=node.hint)
    return result, mean, scale


def _rms_norm(node: OnnxNode) -> Results:
    x, program = node.input(0), node.program
    axis, eps = normalize_axis(node.integer("axis", -1), x.rank), node.number("epsilon", 1e-5)
    gain = node.input(1)
    if axis == x.rank - 1 and gain.rank == 1 and gain.shape[0] == x.shape[-1]:
        return rms_norm(program, x, gain, eps, hint=node.hint)
    wide = cast(program, x, ElementType.F32) if node.integer("stash_type", 1) == 1 and x.type.bits < 32 else x
    mean = reduce(program, apply(program, "square", wide), "mean", range(axis, x.rank), True)
    scale = apply(program, "rsqrt", apply(program, "add", mean, eps))
    return apply(program, "mul", cast(program, apply(program, "mul", wide, scale), x.type), gain, hint=node.hint)


def _lp_norm(node: OnnxNode) -> Results:
    x, program, p = node.input(0), node.program, node.integer("p", 2)
    axis = node.integer("axis", -1)
    if p not in (1, 2):
        raise UnsupportedError(f"a norm of order {p}")
    powers = apply(program, "abs" if p == 1 else "square", x)
    norm = reduce(program, powers, "sum", [axis], True)
    norm = apply(program, "sqrt", norm) if p == 2 else norm
    is_zero = apply(program, "eq", norm, 0)
    return where(program, is_zero, 0, apply(program, "div", x, norm), hint=node.hint)


def _local_response(node: OnnxNode) -> Results:
    x, program, size = node.input(0), node.program, node.integer("size", 1)
    before = (size - 1) // 2
    squares = pad(program, apply(program, "square", x), [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.rank - 2)])
    indices = [f"i{k}" for k in range(x.rank)]
    brackets = ", ".join([indices[0], "i1 + r0", *indices[2:]])
    text = f"sum[r0 = {size}]({{0}}[{brackets}])"
    total = program.equation(f"{node.hint}_sum", [f"{i}=" for i in indices], text, [squares], x.shape, x.type)
    scaled = apply(program, "mul", total, node.number("alpha", 1e-4) / size)
    base = apply(program, "add", scaled, node.number("bias", 1.0))
    return apply(program, "div", x, apply(program, "pow", base, node.number("beta", 0.75)), hint=node.hint)


REDUCING_OPERATORS: Mapping[str, Convert] = {
    "ReduceSum": _reduce("sum"), "ReduceMean": _reduce("mean"), "ReduceProd": _reduce("prod"),
    "ReduceMax": _reduce("max"), "ReduceMin": _reduce("min"), "ReduceL1": _reduce("sum", ["abs"]),
    "ReduceL2": _reduce("sum", ["square"], ["sqrt"]), "ReduceLogSum": _reduce("sum", [], ["log"]),
    "ReduceSumSquare": _reduce("sum", ["square"]), "ReduceLogSumExp": _log_sum_exp, "ArgMax": _extreme(True),
    "ArgMin": _extreme(False), "TopK": _topk, "Softmax": _softmax("softmax"), "LogSoftmax": _softmax("log_softmax"),
    "CumSum": _accumulate("sum"), "CumProd": _accumulate("prod"), "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm, "LpNormalization": _lp_norm, "LRN": _local_response,
}  # fmt: skip
