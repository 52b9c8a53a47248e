"""Calls that stand for index equations: products, reductions, permutations of dimensions, slices, lookups, experts, and
concatenations.

A matrix product has the indices i, j, k, with batch indices b0, b1, ... before them (paper, Examples 1 to 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from einc.core.tensor import DType, TensorDesc, TensorType
from einc.errors import OperatorError
from einc.ops import elementwise
from einc.ops.arguments import (
    Argument,
    drop_item,
    find_positions,
    format_value,
    is_integer,
    make_unique,
    read_dimension,
    reject_others,
    require_tensors,
    take_tensor_and_names,
)
from einc.ops.base import Attributes, Operator
from einc.ops.equation import build_equation
from einc.ops.scalar import make_step, parse_program
from einc_runtime.plan.index_programs import (
    COPY_PROGRAM,
    MAX_READS,
    PRODUCT_PROGRAMS,
    IndexProgram,
    Position,
    TensorRead,
)
from einc_runtime.plan.scalar_programs import ScalarInput

CALLS = ("matmul", "sum", "prod", "mean", "max", "min", "transpose", "slice", "embedding", "expert_matmul", "concat")


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """The index equation that a call stands for."""
    makers = {
        "matmul": _multiply,
        "transpose": _transpose,
        "slice": _slice,
        "embedding": _look_up,
        "expert_matmul": _multiply_experts,
        "concat": _concatenate,
    }
    make = makers.get(name, _reduce)
    return make(name, arguments, attributes)


def _multiply(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`matmul(a, b)` contracts the last dimension of a with the second-last of b.

    Leading dimensions are batch dimensions: both operands have the same ones, by position, or one operand has none.
    """
    reject_others(name, attributes)
    a, b = require_tensors(name, arguments, 2)
    for position, operand in enumerate((a, b)):
        if operand.rank < 2:
            raise OperatorError(
                f"matmul: operand {position + 1} must have two or more dimensions, not {operand}",
                argument=position,
                hint="use an index equation: y[i] = a[i, j] * b[j]",
            )
    if a.shape[-1] != b.shape[-2]:
        raise OperatorError(
            f"matmul: dimension '{b.dims[-2]}' of operand 2 is {b.shape[-2]}, expected {a.shape[-1]} as "
            f"'{a.dims[-1]}', the last of operand 1",
            argument=1,
            hint="the last dimension of operand 1 meets the second-last of operand 2; transpose one of them?",
        )
    if a.rank > 2 and b.rank > 2 and a.shape[:-2] != b.shape[:-2]:
        raise OperatorError(
            f"matmul: batch dimensions differ: {list(a.shape[:-2])} of operand 1, {list(b.shape[:-2])} of operand 2",
            argument=1,
            hint="all dimensions before the last two must agree by position, or one operand has none",
        )
    batch_desc = a if a.rank > 2 else b
    batch = tuple(f"b{n}" for n in range(batch_desc.rank - 2))
    labels_a = (*(batch if a.rank > 2 else ()), "i", "j")
    labels_b = (*(batch if b.rank > 2 else ()), "j", "k")
    dims = make_unique([*batch_desc.dims[:-2], a.dims[-2], b.dims[-1]])
    return build_equation(
        [(a, labels_a), (b, labels_b)],
        list(zip((*batch, "i", "k"), dims, strict=True)),
        make_step("mul", ScalarInput(0), ScalarInput(1)),
        "sum",
    )


def _reduce(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`sum(x, "tokens")` and `max(x, over=["heads", "tokens"])` aggregate over the named dimensions.

    `max` and `min` with two operands and no names are elementwise.
    """
    numbers = len(arguments) == 2 and not isinstance(arguments[1], str | tuple)
    if name in elementwise.BINARY_EXTREMES and numbers and "over" not in attributes:
        return elementwise.call(name, arguments, attributes)
    reject_others(name, attributes, "over")
    tensor, over = take_tensor_and_names(name, arguments, attributes, "over")
    if not over:
        raise OperatorError(
            f"{name}: which dimensions of {tensor} to aggregate over is not said", hint=f'{name}(x, "dimension", ...)'
        )
    gone = find_positions(name, tensor, over)
    labels = make_unique(tensor.dims)
    result = [(labels[at], tensor.dims[at]) for at in range(tensor.rank) if at not in gone]
    if name == "mean":
        count = math.prod(tensor.shape[at] for at in gone)
        # Dividing before the sum keeps partial sums of 16-bit floats in range.
        program = make_step("div", ScalarInput(0), float(count))
        return build_equation([(tensor, labels)], result, program, "sum")
    return build_equation([(tensor, labels)], result, make_step("copy", ScalarInput(0)), name)


def _transpose(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`transpose(x, "d_head", "heads", "tokens")` lists all dimensions in the new order; without names it swaps the
    last two."""
    reject_others(name, attributes, "dims")
    tensor, dims = take_tensor_and_names(name, arguments, attributes, "dims")
    if dims:
        order = find_positions(name, tensor, dims)
        missing = [dim for at, dim in enumerate(tensor.dims) if at not in order]
        if missing:
            raise OperatorError(
                f"transpose: dimension '{missing[0]}' of {tensor} is not listed",
                argument=dims[0][1],
                hint="list every dimension once, in the new order",
            )
    elif tensor.rank < 2:
        raise OperatorError(f"transpose: {tensor} has no two dimensions to swap", argument=0)
    else:
        order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
    labels = make_unique(tensor.dims)
    result = [(labels[at], tensor.dims[at]) for at in order]
    return build_equation([(tensor, labels)], result, make_step("copy", ScalarInput(0)), None)


def _slice(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`slice(x, tokens=[0, 128], heads=[2, 4])`: for each dimension the first position, and the one after the last."""
    (tensor,) = require_tensors(name, arguments, 1)
    starts, stops = [0] * tensor.rank, list(tensor.shape)
    for dim, bounds in attributes.items():
        (at,) = find_positions(name, tensor, [(dim, dim)])
        start, stop = bounds if isinstance(bounds, tuple) and len(bounds) == 2 else (None, None)
        if not (is_integer(start) and is_integer(stop) and 0 <= start < stop <= tensor.shape[at]):
            raise OperatorError(
                f"{name}: '{dim}' must be [start, stop] within 0 and {tensor.shape[at]}, not {format_value(bounds)}",
                argument=dim,
            )
        starts[at], stops[at] = start, stop
    return cut_out(tensor, TensorType(tuple(starts), tuple(stops)))


def cut_out(tensor: TensorDesc, box: TensorType) -> Operator:
    """The slice that is the part `box` of a tensor."""
    labels = make_unique(tensor.dims)
    result = list(zip(labels, tensor.dims, strict=True))
    return build_equation([(tensor, labels)], result, make_step("copy", ScalarInput(0)), None, (box,))


def _look_up(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`embedding(ids, table)`: the dimensions of `ids`, then the columns of `table`."""
    reject_others(name, attributes)
    ids, table = require_tensors(name, arguments, 2)
    if not ids.dtype.is_integer:
        raise OperatorError(f"embedding: ids are integers, not {ids.dtype}", argument=0, hint="embedding(ids, table)")
    if table.rank != 2 or table.dtype is DType.BOOL:
        raise OperatorError(
            f"embedding: the table is {table}, expected numbers in two dimensions: vocabulary, columns", argument=1
        )
    loops = make_unique([*ids.dims, table.dims[1]])
    from einc.ops.index_operator import build_index_operator

    extents = (*ids.shape, table.shape[1])
    reads = (_read(1, "@1", loops[-1]), _read(0, *loops[:-1]))
    program = IndexProgram(tuple(zip(loops, extents, strict=True)), len(loops), reads, COPY_PROGRAM, "")
    return build_index_operator([ids, table], program, parse_program(COPY_PROGRAM, 2), loops)


def _multiply_experts(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`expert_matmul(x, weight, picks)`: y[t, s, n] = sum[k](x[t, s, k] * weight[picks[t, s], n, k]). If x lacks s, all
    experts of a token read the same row."""
    from einc.ops.index_operator import build_index_operator

    reject_others(name, attributes)
    x, weight, picks = require_tensors(name, arguments, 3)
    if not picks.dtype.is_integer or picks.rank != 2:
        message = f"{name}: the picks are {picks}, expected integers in two dimensions: tokens, slots"
        raise OperatorError(message, argument=2, hint="values, picks = topk(scores, 2)")
    if not weight.dtype.is_float or weight.rank != 3:
        message = f"{name}: the weight is {weight}, expected floats in three dimensions: experts, rows, columns"
        raise OperatorError(message, argument=1)
    loops = t, s, n, k = make_unique([*picks.dims, *weight.dims[1:]])
    rows = (t, s, k) if x.rank == 3 else (t, k)
    extents = dict(zip(loops, (*picks.shape, *weight.shape[1:]), strict=True))
    if x.dtype is not weight.dtype or x.shape != tuple(extents[loop] for loop in rows):
        expected = ", ".join(f"{loop}={extents[loop]}" for loop in rows)
        message = f"{name}: the tensor is {x}, expected {weight.dtype}[{expected}], with or without '{s}'"
        raise OperatorError(message, argument=0)
    reads = (_read(1, "@2", n, k), _read(0, *rows), _read(2, t, s))
    program = IndexProgram(tuple(extents.items()), 3, reads, PRODUCT_PROGRAMS[0], "sum")
    return build_index_operator([x, weight, picks], program, parse_program(program.program, 3), make_unique((t, s, n)))


def _read(operand: int, *positions: str) -> TensorRead:
    """The element of an operand at loops, or at elements of other reads."""
    return TensorRead(operand, tuple(Position(((position, 1),)) for position in positions))


def _concatenate(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`concat(a, b, over="past", into="tokens")`: `over` is a dimension of the first, `into` its name in the result.

    It may be cut anywhere. An interval of the concatenated dimension overlaps some of the parts. Of every other part, a
    function specification reads the one position nearest to the interval, because it must read a block of every input.
    """
    reject_others(name, attributes, "over", "into")
    if not arguments:
        raise OperatorError(f"{name} takes one or more tensors, not 0", hint=f'{name}(a, b, over="name")')
    parts = require_tensors(name, arguments, len(arguments))
    first, over = parts[0], attributes.get("over")
    if not isinstance(over, str):
        raise OperatorError(f"{name} needs the dimension to go over", argument="over", hint='over="name"')
    if over not in first.dims and any(over in part.dims for part in parts):
        raise OperatorError(
            f"{name}: '{over}' is a dimension of a later operand; `over` names one of the first, {first}",
            argument="over",
            hint="the others align with it by position, whatever their dimensions are called",
        )
    (axis,) = find_positions(name, first, [(over, "over")])
    into = read_dimension("concat", "into", attributes.get("into", over))
    if into in drop_item(first.dims, axis):
        raise OperatorError(f"concat: {first} has another dimension '{into}'", argument="into")
    for position, part in enumerate(parts):
        if part.dtype is not first.dtype:
            raise OperatorError(
                f"concat: operand {position + 1} is {part.dtype}, expected {first.dtype} as the first",
                argument=position,
                hint=f'convert it: cast(x, "{first.dtype}")',
            )
        if part.rank != first.rank or drop_item(part.shape, axis) != drop_item(first.shape, axis):
            raise OperatorError(
                f"concat: operand {position + 1} is {part}, expected the extents of {first} in all dimensions but "
                f"'{first.dims[axis]}'",
                argument=position,
            )
    return join_along(parts, axis, into)


def join_along(parts: Sequence[TensorDesc], axis: int, into: str) -> Operator:
    """Tensors of equal extents in all dimensions but `axis`, one after the other along it. It is called `into` then.

    Raises OperatorError where they are more than an index program can read.
    """
    first = parts[0]
    dims = (*first.dims[:axis], into, *first.dims[axis + 1 :])
    loops = make_unique(dims)
    if len(parts) == 1:
        return build_equation(
            [(first, loops)], list(zip(loops, dims, strict=True)), make_step("copy", ScalarInput(0)), None
        )
    if len(parts) >= MAX_READS:
        hint = "concatenate some of them first"
        raise OperatorError(f"concat: {len(parts)} tensors; at most {MAX_READS - 1} are supported", hint=hint)
    from einc.ops.index_operator import build_index_operator
    from einc_runtime.plan.index_patterns import write_concatenation

    program = write_concatenation(loops, [part.shape for part in parts], axis)
    return build_index_operator(parts, program, parse_program(program.program, len(program.reads)), dims)
