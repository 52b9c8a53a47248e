"""The layers `GRU`, `LSTM` and `RNN` of PyTorch: each layer and direction is a recurrence of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einc.importers.arrays.moving import concat, flip, reshape, slice_axis, transpose
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, UnsupportedError
from einc.importers.pytorch.aten.table import Call, aten
from einc.ops.arguments import make_unique


@aten("gru")
def convert_gru(
    call: Call, input: Array, hx: Array, params: Sequence[Array], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Array, ...]:  # fmt: skip
    return _convert_layers(call, "gru", input, (hx,), params, has_biases, num_layers, bidirectional, batch_first)


@aten("lstm")
def convert_lstm(
    call: Call, input: Array, hx: Sequence[Array], params: Sequence[Array], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Array, ...]:  # fmt: skip
    return _convert_layers(call, "lstm", input, hx, params, has_biases, num_layers, bidirectional, batch_first)


@aten("rnn_tanh")
def convert_rnn(
    call: Call, input: Array, hx: Array, params: Sequence[Array], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Array, ...]:  # fmt: skip
    return _convert_layers(call, "rnn", input, (hx,), params, has_biases, num_layers, bidirectional, batch_first)


def _convert_layers(
    call: Call, function: str, rows: Array, starts: Sequence[Array], params: Sequence[Array], has_biases: bool,
    layers: int, bidirectional: bool, batch_first: bool,
) -> tuple[Array, ...]:  # fmt: skip
    """The values of the last layer at every step, and what is kept (`starts`) behind the last step of each layer.

    `rows` is [batch, steps, channels] or, if not `batch_first`, [steps, batch, channels]; `starts` are [layers and
    directions, batch, hidden].
    """
    if rows.rank != 3:
        raise UnsupportedError(f"{function} of an input of {rows.rank} dimensions", "give it a batch")
    program, directions = call.program, 2 if bidirectional else 1
    rows = rows if batch_first else transpose(program, rows, [1, 0, 2])
    step_axis = 1
    last_values: list[list[Array]] = [[] for _ in starts]
    of_direction = len(params) // (layers * directions)
    for layer in range(layers):
        results = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * of_direction : (number + 1) * of_direction]
            if len(weights) not in (2, 4) or (len(weights) == 4) != has_biases:
                raise UnsupportedError(f"{function} with projections")
            read = flip(program, rows, [step_axis]) if direction else rows
            kept = _recur(call, function, read, [_take_layer(program, start, number) for start in starts], weights)
            end = read.shape[step_axis]
            for values, ends in zip(kept, last_values, strict=True):
                ends.append(slice_axis(program, values, step_axis, end - 1, end))
            results.append(flip(program, kept[0], [step_axis]) if direction else kept[0])
        rows = results[0] if len(results) == 1 else concat(program, results, 2)
    by_layer = [transpose(program, concat(program, ends, 1), [1, 0, 2]) for ends in last_values]
    return rows if batch_first else transpose(program, rows, [1, 0, 2]), *by_layer


def _take_layer(program: ArrayProgram, start: Array, number: int) -> Array | None:
    """What a layer starts from, [batch, hidden]; None for zeros."""
    if start.scalar == 0:
        return None
    layer = slice_axis(program, start, 0, number, number + 1)
    return reshape(program, layer, start.shape[1:])


def _recur(
    call: Call, function: str, rows: Array, starts: Sequence[Array | None], weights: Sequence[Array]
) -> tuple[Array, ...]:
    """One layer in one direction: what it keeps at every step, of which the first are its values."""
    program = call.program
    hidden = weights[1].shape[1]
    width = weights[0].shape[0]
    no_bias = program.constant(np.zeros(width.value, rows.type.numpy), rows.type, "no_bias")
    operands = [program.place(part) for part in (rows, *weights, *(() if len(weights) == 4 else (no_bias, no_bias)))]
    text = ", ".join(f"{{{k}}}" for k in range(5))
    for name, start in zip(("start", "start_cell"), starts, strict=False):
        if start is not None:
            text += f", {name}={{{len(operands)}}}"
            operands.append(program.place(start))
    shape = (*rows.shape[:-1], hidden)
    dims = make_unique([*operands[0].dims[:-1], "hidden"])
    results: list[Any] = [(shape, rows.type, dims) for _ in starts]
    return program.calls(call.hint, f"{function}({text})", operands, results)
