"""Channel order: images of convolutions lie in memory pixel by pixel, each with all of its channels.

The library that convolves them on CPUs then reads and writes them where they are, and brings none into a layout of its
own. What is computed stays the same: only where an element of a value lies changes, in all buffers of a tensor alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from einc_runtime.errors import PlanFault
from einc_runtime.execution.rewrites.convolutions import read_convolution, read_program
from einc_runtime.kernels.numpy import onednn
from einc_runtime.plan.index_equations import parse_index_equation
from einc_runtime.plan.index_programs import TensorRead
from einc_runtime.plan.schema import Bundle, Operation
from einc_runtime.plan.states import STATE

Order = tuple[int, ...]


def order_channels(bundle: Bundle) -> Bundle:
    """The plan with images of convolutions in that order where there is the library, and all that is mapped to them or
    from them. Tensors that are loaded or saved, that states become, or that the plan has ordered, stay as they are."""
    held = {output.tensor for output in bundle.outputs}
    held |= {buffer.tensor for buffer in bundle.buffers if buffer.role == STATE}
    orders: dict[int, Order] = {}
    neighbours: dict[int, set[int]] = defaultdict(set)
    for operation in bundle.operations:
        try:
            order, operands = _find_order(operation), list(_list_neighbours(operation))
        except (PlanFault, LookupError, TypeError, ValueError):
            continue  # its kernel will say what is wrong with it
        for number in operands:
            neighbours[number].add(operation.outputs[0])
            neighbours[operation.outputs[0]].add(number)
        if order is not None:
            orders[operation.outputs[0]] = order
    waiting = list(orders)
    while waiting:
        number = waiting.pop()
        for neighbour in sorted(neighbours[number] - orders.keys()):
            orders[neighbour] = orders[number]
            waiting.append(neighbour)
    tensors = [
        msgspec.structs.replace(tensor, order=orders[number])
        if number in orders and tensor.kind == "value" and not tensor.order and number not in held
        else tensor
        for number, tensor in enumerate(bundle.tensors)
    ]
    is_useful = bool(orders) and onednn.is_available()
    return msgspec.structs.replace(bundle, tensors=tuple(tensors)) if is_useful else bundle


def _find_order(operation: Operation) -> Order | None:
    """The dimensions of an image that is convolved, from the slowest to the fastest; None for all other operations."""
    known = read_convolution(operation)
    if known is None:
        return None
    program, convolution = known
    channels = (convolution.group, convolution.filter)
    return tuple(sorted(range(program.kept), key=lambda dim: program.result[dim] in channels))


def _list_neighbours(operation: Operation) -> Iterator[int]:
    """The operands, as tensors, of maps and index programs whose dimensions follow those of the result one by one, but
    for one at most, as channels do that are summed."""
    if operation.kernel == "map":
        equation = parse_index_equation(str(operation.kernel_attributes["indices"]))
        yield from (
            operation.inputs[number] for number, names in enumerate(equation.inputs) if names == equation.output
        )
    elif operation.kernel == "index":
        program = read_program(operation)
        for read in program.reads:
            if isinstance(read, TensorRead) and len(read.positions) == program.kept > 1:
                pairs = zip(read.positions, program.result, strict=True)
                followed = sum(any(name == loop for name, _ in position.terms) for position, loop in pairs)
                if followed >= program.kept - 1:
                    yield operation.inputs[read.operand]
