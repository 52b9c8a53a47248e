"""Scans of ONNX over a length that is known, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einc.importers.arrays.moving import concat, slice_axis, squeeze, unsqueeze
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.values import Array, UnsupportedError, normalize_axis

MAX_SCAN_STEPS = 1_000
"""Steps of a scan, each of which has all statements of its body in the text."""


def scan(
    program: ArrayProgram,
    run: Callable[[Any, Sequence[Array]], list[Array]],
    body: Any,
    inputs: Sequence[Array],
    attributes: Mapping[str, Any],
) -> list[Array]:
    """The last states, and the outputs of all steps one after the other; `run` computes a graph of such inputs."""
    count = int(attributes.get("num_scan_inputs", 0))
    states, sequences = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
    axes = [
        normalize_axis(axis, x.rank)
        for axis, x in zip(_read(attributes, "scan_input_axes", count), sequences, strict=True)
    ]
    backwards = _read(attributes, "scan_input_directions", count)
    if not sequences or not sequences[0].shape[axes[0]].is_number:
        raise UnsupportedError("a scan of a length that depends on params", "give the params numbers: --dim NAME=N")
    steps = sequences[0].shape[axes[0]].value
    if steps > MAX_SCAN_STEPS:
        raise UnsupportedError(f"a scan of {steps:,} steps, of at most {MAX_SCAN_STEPS:,}")
    collected: list[list[Array]] = []
    for step in range(steps):
        parts = []
        for x, axis, backward in zip(sequences, axes, backwards, strict=True):
            at = steps - 1 - step if backward else step
            parts.append(squeeze(program, slice_axis(program, x, axis, at, at + 1), [axis]))
        results = run(body, [*states, *parts])
        states, outputs = results[: len(states)], results[len(states) :]
        collected.append(outputs)
    outputs_count = len(collected[0]) if collected else 0
    output_axes = _read(attributes, "scan_output_axes", outputs_count)
    output_backwards = _read(attributes, "scan_output_directions", outputs_count)
    stacked = []
    for k, axis in enumerate(output_axes):
        pieces = [unsqueeze(program, outputs[k], [axis]) for outputs in collected]
        stacked.append(concat(program, pieces[::-1] if output_backwards[k] else pieces, axis))
    return [*states, *stacked]


def _read(attributes: Mapping[str, Any], name: str, count: int) -> list[int]:
    values = attributes.get(name) or [0] * count
    return [int(value) for value in values]
