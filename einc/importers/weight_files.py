"""Writes weights that belong to a text as one safetensors file, tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from einc.core.tensor import DType
from einc.importers.arrays.element_types import find_element_type

TEXT_FILE = "model.ein"
WEIGHT_FILE = "model.safetensors"

_SAFETENSORS_CODES = {
    DType.F16: "F16", DType.BF16: "BF16", DType.F32: "F32", DType.F64: "F64", DType.I32: "I32", DType.I64: "I64",
    DType.BOOL: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightToWrite:
    """A tensor with its name in the file; `read` makes its elements, when it is its turn."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray[Any, np.dtype[Any]]]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_weights(stream: BinaryIO, weights: Sequence[WeightToWrite]) -> None:
    """The file of these weights; only one of them is in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for weight in weights:
        end = start + weight.bytes
        header[weight.name] = {
            "dtype": _SAFETENSORS_CODES[weight.dtype], "shape": list(weight.shape), "data_offsets": [start, end]
        }  # fmt: skip
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for weight in weights:
        dense = np.ascontiguousarray(weight.read())
        if dense.dtype.byteorder == ">":
            dense = dense.astype(dense.dtype.newbyteorder("<"))
        stream.write(memoryview(dense.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]


def describe_weight(name: str, array: np.ndarray[Any, np.dtype[Any]]) -> WeightToWrite:
    """An array of a type of the language."""
    type_ = find_element_type(array.dtype)
    if type_ is None:
        raise TypeError(f"weight {name} of type {array.dtype.name}")
    return WeightToWrite(name, type_.carrier, array.shape, lambda: array)
