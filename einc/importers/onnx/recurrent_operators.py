"""Recurrent networks of ONNX, step by step: sequences [time, batch, width] of a length that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.elementwise import apply, cast, where
from einc.importers.arrays.moving import concat, expand, reshape, slice_axis, squeeze, transpose, unsqueeze
from einc.importers.arrays.products import matmul
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.onnx.nodes import Convert, OnnxNode, Results

MAX_SEQUENCE_STEPS = 2_000
"""Steps of a sequence, each of which is several statements of the text."""

_FUNCTIONS = {
    "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "softsign": "softsign", "softplus": "softplus",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Direction:
    """The weights of one direction [gates * hidden, ...], its activations, and what it starts from [batch, hidden]."""

    inputs: Array
    recurrent: Array
    input_bias: Array | None
    recurrent_bias: Array | None
    peepholes: Array | None
    functions: tuple[str, ...]
    hidden: Array
    cell: Array | None


Cell = Callable[[OnnxNode, Array, Array, Array | None, Direction], tuple[Array, Array | None]]
"""One step: from inputs [batch, width], the hidden state and the cell state to the next states."""


def _linear(node: OnnxNode, x: Array, weight: Array, bias: Array | None) -> Array:
    product = matmul(node.program, x, transpose(node.program, weight, [1, 0]))
    return product if bias is None else apply(node.program, "add", product, bias)


def _gates(node: OnnxNode, array: Array, count: int, axis: int = -1) -> list[Array]:
    each = array.shape[axis] // count
    return [slice_axis(node.program, array, axis, each * k, each * (k + 1)) for k in range(count)]


def _step_plain(
    node: OnnxNode, x: Array, hidden: Array, cell: Array | None, weights: Direction
) -> tuple[Array, Array | None]:
    total = apply(
        node.program,
        "add",
        _linear(node, x, weights.inputs, weights.input_bias),
        _linear(node, hidden, weights.recurrent, weights.recurrent_bias),
    )
    return apply(node.program, weights.functions[0], total), None


def _step_gated(
    node: OnnxNode, x: Array, hidden: Array, cell: Array | None, weights: Direction
) -> tuple[Array, Array | None]:
    program = node.program
    update, reset, new = _gates(node, _linear(node, x, weights.inputs, weights.input_bias), 3)
    matrices = _gates(node, weights.recurrent, 3, 0)
    biases: Sequence[Array | None] = [None] * 3
    if weights.recurrent_bias is not None:
        biases = _gates(node, weights.recurrent_bias, 3)
    gates = [
        apply(program, weights.functions[0], apply(program, "add", part, _linear(node, hidden, matrices[k], biases[k])))
        for k, part in enumerate((update, reset))
    ]
    if node.integer("linear_before_reset"):
        inner = apply(program, "mul", gates[1], _linear(node, hidden, matrices[2], biases[2]))
    else:
        inner = _linear(node, apply(program, "mul", gates[1], hidden), matrices[2], biases[2])
    candidate = apply(program, weights.functions[1], apply(program, "add", new, inner))
    kept = apply(program, "mul", gates[0], hidden)
    return apply(program, "add", apply(program, "mul", apply(program, "sub", 1, gates[0]), candidate), kept), None


def _step_memory(
    node: OnnxNode, x: Array, hidden: Array, cell: Array | None, weights: Direction
) -> tuple[Array, Array | None]:
    program = node.program
    assert cell is not None
    total = apply(
        program,
        "add",
        _linear(node, x, weights.inputs, weights.input_bias),
        _linear(node, hidden, weights.recurrent, weights.recurrent_bias),
    )
    into, out, forget, new = _gates(node, total, 4)
    peeks = [None] * 3 if weights.peepholes is None else _gates(node, weights.peepholes, 3)

    def gate(part: Array, peek: Array | None, state: Array) -> Array:
        seen = part if peek is None else apply(program, "add", part, apply(program, "mul", peek, state))
        return apply(program, weights.functions[0], seen)

    opened = gate(into, peeks[0], cell)
    kept = apply(program, "sub", 1, opened) if node.integer("input_forget") else gate(forget, peeks[2], cell)
    candidate = apply(program, weights.functions[1], new)
    memory = apply(program, "add", apply(program, "mul", kept, cell), apply(program, "mul", opened, candidate))
    shown = gate(out, peeks[1], memory)
    return apply(program, "mul", shown, apply(program, weights.functions[2], memory)), memory


def _recurrent(step: Cell, gates: int, defaults: Sequence[str]) -> Convert:
    """A converter; `defaults` are the activations of one direction."""

    def convert(node: OnnxNode) -> Results:
        program, x = node.program, node.input(0)
        if "clip" in node.attributes:
            raise UnsupportedError("clipped gates are not supported")
        batch_first = bool(node.integer("layout"))
        x = transpose(program, x, [1, 0, 2]) if batch_first else x
        if not x.shape[0].is_number or x.shape[0].value > MAX_SEQUENCE_STEPS:
            raise UnsupportedError(f"a sequence of {x.shape[0].text} steps", "give the params numbers: --dim NAME=N")
        directions = node.input(1).shape[0].value
        backwards = node.string("direction", "forward")
        sequences, hiddens, cells = [], [], []
        for k in range(directions):
            weights = _read_direction(node, x, k, gates, defaults, batch_first)
            reverse = backwards == "reverse" or k == 1
            outputs, hidden, cell = _run(node, step, x, weights, reverse)
            sequences.append(unsqueeze(program, outputs, [1]))
            hiddens.append(unsqueeze(program, hidden, [0]))
            cells += [unsqueeze(program, cell, [0])] if cell is not None else []
        results = [concat(program, sequences, 1, node.hint), concat(program, hiddens, 0)]
        results += [concat(program, cells, 0)] if cells else []
        if batch_first:
            orders = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
            results = [transpose(program, part, order) for part, order in zip(results, orders, strict=False)]
        return tuple(results)

    return convert


def _read_direction(
    node: OnnxNode, x: Array, k: int, gates: int, defaults: Sequence[str], batch_first: bool
) -> Direction:
    program = node.program

    def part(position: int) -> Array | None:
        array = node.optional(position)
        return None if array is None else squeeze(program, slice_axis(program, array, 0, k, k + 1), [0])

    def state(position: int) -> Array:
        array = node.optional(position)
        shape = [x.shape[1], node.input(2).shape[-1]]
        if array is None:
            return expand(program, program.constant(np.zeros((), x.type.numpy), x.type), shape)
        array = transpose(program, array, [1, 0, 2]) if batch_first else array
        return reshape(program, slice_axis(program, array, 0, k, k + 1), shape)

    names = [name.decode() if isinstance(name, bytes) else str(name) for name in node.attributes.get("activations", ())]
    functions = [name.lower() for name in names[k * len(defaults) : (k + 1) * len(defaults)]] or list(defaults)
    unknown = [name for name in functions if name not in _FUNCTIONS]
    if unknown:
        raise UnsupportedError(f"the activation '{unknown[0]}' is not supported here")
    bias = part(3)
    biases = [None, None] if bias is None else _gates(node, bias, 2)
    weight, recurrent = part(1), part(2)
    if weight is None or recurrent is None:
        raise UnsupportedError("its weights are missing")
    peepholes = part(7) if len(defaults) == 3 else None
    cell = state(6) if len(defaults) == 3 else None
    return Direction(
        weight,
        recurrent,
        biases[0],
        biases[1],
        peepholes,
        tuple(_FUNCTIONS[name] for name in functions),
        state(5),
        cell,
    )


def _run(node: OnnxNode, step: Cell, x: Array, weights: Direction, reverse: bool) -> tuple[Array, Array, Array | None]:
    """All steps of one direction: the hidden states [time, batch, hidden], and the last states."""
    program, lengths = node.program, node.optional(4)
    hidden, cell = weights.hidden, weights.cell
    steps = range(x.shape[0].value)
    outputs: list[Array] = []
    for k in reversed(steps) if reverse else steps:
        now = squeeze(program, slice_axis(program, x, 0, k, k + 1), [0])
        next_hidden, next_cell = step(node, now, hidden, cell, weights)
        shown = next_hidden
        if lengths is not None:
            counts = cast(program, lengths, ElementType.I64)
            valid = reshape(program, apply(program, "gt", counts, k), [x.shape[1], 1])
            shown = where(program, valid, next_hidden, 0)
            next_hidden = where(program, valid, next_hidden, hidden)
            next_cell = None if next_cell is None or cell is None else where(program, valid, next_cell, cell)
        hidden, cell = next_hidden, next_cell
        outputs.append(unsqueeze(program, shown, [0]))
    return concat(program, outputs[::-1] if reverse else outputs, 0), hidden, cell


RECURRENT_OPERATORS: Mapping[str, Convert] = {
    "RNN": _recurrent(_step_plain, 1, ["tanh"]),
    "GRU": _recurrent(_step_gated, 3, ["sigmoid", "tanh"]),
    "LSTM": _recurrent(_step_memory, 4, ["sigmoid", "tanh", "tanh"]),
}
