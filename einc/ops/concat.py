"""Concatenation of tensors along one dimension: an index program that chooses among them.

It may be cut anywhere. An interval of the concatenated dimension overlaps some of the parts. Of every other part, a
function specification reads the one position nearest to the interval, because it must read a block of every input.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.core.tensor import TensorDesc
from einc.errors import OperatorError
from einc.ops.arguments import (
    Argument,
    drop_item,
    find_positions,
    make_unique,
    read_dimension,
    reject_others,
    require_tensors,
)
from einc.ops.base import Attributes, Operator
from einc.ops.equation import build_equation
from einc.ops.scalar import make_step, parse_program
from einc_runtime.plan.index_programs import MAX_READS
from einc_runtime.plan.scalar_programs import ScalarInput

CALLS = ("concat",)


def call(name: str, arguments: Sequence[Argument], attributes: Attributes) -> Operator:
    """`concat(a, b, over="past", into="tokens")`: `over` is a dimension of the first, `into` its name in the result."""
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
    return _concatenate(parts, axis, into)


def _concatenate(parts: Sequence[TensorDesc], axis: int, into: str) -> Operator:
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
