"""Quantizes the weights of a published folder into a new one, in the layout of compressed-tensors.

Linear layers are quantized: the matrices of `..._proj.weight` and of experts, and with `head` that of the logits, if it
has a tensor of its own. Embeddings, norms and biases are copied: rows of embeddings are looked up, not multiplied.
One tensor is in memory at a time, and rows of it as floats. The new folder appears whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from einc.core.tensor import Array
from einc.quantizing.rounding import (
    UNIT_FACTOR,
    RoundingScheme,
    find_global_scale,
    pack_words,
    round_floats,
    round_rows,
)
from einc.quantizing.schemes import describe_scheme
from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.execution.data.safetensors import INDEX_FILE, SafetensorsEntry, SafetensorsFile, open_folder
from einc_runtime.plan.element_types import ELEMENT_FORMATS
from einc_runtime.strict_json import parse_json

_LINEAR = re.compile(r"(.+(_proj|\.experts\.\d+\.w[123]))\.weight")
_HEAD = "lm_head.weight"
_FLOAT_CODES = ("F16", "BF16", "F32")
"""The types of weights that are quantized, as files name them."""
_COPIED = (".json", ".txt", ".model", ".md", ".jinja")
CONFIGURATION = "config.json"
ROWS_AT_ONCE = 1 << 22
"""Elements that are rounded at a time."""

Phase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TensorError:
    """A quantized tensor: its name, its shape, and how far it is from the one it was made of, relative to that."""

    name: str
    shape: tuple[int, ...]
    relative: float


@dataclass(frozen=True, slots=True)
class QuantizedFolder:
    """The errors of all quantized tensors in the order of the files, and the bytes of all tensors before and after."""

    errors: tuple[TensorError, ...]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


def quantize_folder(
    source: str, target: str, scheme: RoundingScheme, head: bool, phase: Phase, *, round_inputs: bool = False
) -> QuantizedFolder:
    """Writes the folder, whose configuration may say that products round what they multiply with the weights.
    Raises UsageFault, ArrayFault for weights that cannot be quantized, and OSError."""
    if os.path.lexists(target):
        raise UsageFault("there is something of this name already", where=target, hint="name a new folder")
    files = open_folder(source)
    config = _read_config(source)
    chosen = _choose(files, scheme, head, source)
    destination = Path(target).absolute()
    temporary = destination.parent / f".einc-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        temporary.mkdir()  # here, so that an interrupt right after it removes the folder
        errors: list[TensorError] = []
        before = after = 0
        opened = {id(file): file for file in files.values()}
        names: dict[str, str] = {}
        for file in sorted(opened.values(), key=lambda opened_file: opened_file.path):
            name = os.path.basename(file.path)
            tensors = [tensor for tensor in file.entries if files.get(tensor) is file]
            phase(f"quantizing {name}")
            parts = [
                part for tensor in tensors for part in _plan(file.entries[tensor], tensor, scheme, tensor in chosen)
            ]
            before += sum(file.entries[tensor].end - file.entries[tensor].begin for tensor in tensors)
            after += sum(part.size for part in parts)
            names |= {part.name: name for part in parts}
            with open(temporary / name, "xb") as stream:
                _write_header(stream, parts)
                for tensor in tensors:
                    errors += _write_tensor(stream, file, tensor, scheme, tensor in chosen)
                _sync(stream)
        if os.path.lexists(os.path.join(source, INDEX_FILE)):
            _write_json(temporary / INDEX_FILE, {"metadata": {"total_size": after}, "weight_map": names})
        for entry in sorted(Path(source).iterdir()):
            if entry.is_file() and entry.suffix in _COPIED and entry.name not in (INDEX_FILE, CONFIGURATION):
                shutil.copyfile(entry, temporary / entry.name)
        skipped = [] if head or _HEAD not in files else ["lm_head"]
        described = describe_scheme(scheme, skipped, round_inputs)
        _write_json(temporary / CONFIGURATION, {**config, "quantization_config": described})
        os.rename(temporary, destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return QuantizedFolder(tuple(errors), before, after)


def _read_config(source: str) -> dict[str, Any]:
    path = os.path.join(source, CONFIGURATION)
    with open(path, "rb") as stream:
        data = stream.read(1 << 22)
    try:
        config = parse_json(data)
    except ValueError as error:
        raise ArrayFault(f"this is no configuration: {error}", where=path) from None
    if not isinstance(config, dict):
        raise ArrayFault("this is no configuration: expected an object in braces", where=path)
    if config.get("quantization_config") is not None:
        raise UsageFault("its weights are quantized already", where=path)
    return config


def _choose(files: dict[str, SafetensorsFile], scheme: RoundingScheme, head: bool, source: str) -> frozenset[str]:
    chosen = [name for name in files if _LINEAR.fullmatch(name) or (head and name == _HEAD)]
    if not chosen:
        raise UsageFault("there is no linear layer to quantize: no tensor '..._proj.weight'", where=source)
    unit = 1 if scheme.has_blocks else scheme.group or (1 if scheme.bits == 8 else 32)  # blocks may be cut off
    for name in chosen:
        entry = files[name].entries[name]
        if len(entry.shape) != 2 or _name_type(entry.dtype) not in _FLOAT_CODES:
            raise ArrayFault(
                f"'{name[:100]}' is {entry.dtype}{list(entry.shape)}, and matrices of floats are quantized"
            )
        if entry.shape[1] % unit:
            raise ArrayFault(
                f"'{name[:100]}' has rows of {entry.shape[1]}, no multiple of {unit}", hint="take another --group"
            )
    return frozenset(chosen)


def _plan(entry: SafetensorsEntry, name: str, scheme: RoundingScheme, quantized: bool) -> Iterator[_Part]:
    """The tensors that are written for one."""
    kind = _name_type(entry.dtype)
    if not quantized:
        yield _Part(name, kind, entry.shape, entry.end - entry.begin)
        return
    rows, depth = entry.shape
    counts = (-(-rows // scheme.group) if scheme.has_blocks else rows, -(-depth // scheme.group) if scheme.group else 1)

    def make(end: str, dtype: str, *shape: int) -> _Part:
        width = next((each.width for each in ELEMENT_FORMATS.values() if each.safetensors == dtype), 1)
        return _Part(f"{name}{end}", dtype, shape, width * math.prod(shape))

    form = scheme.form
    if scheme.packing == 1:
        yield make("", _name_type(form.values), rows, depth)
    elif form.is_float:
        yield make("_packed", "U8", rows, depth // 2)
    else:
        yield make("_packed", "I32", rows, depth // 8)
    scales = "U8" if form.scales == "f8e8m0" else _name_type(form.scales) if form.scales else kind
    yield make("_scale_inv" if scheme.has_blocks else "_scale", scales, *counts)
    if scheme.zeros and scheme.bits == 4:
        yield make("_zero_point", "I32", -(-rows // 8), counts[1])
    elif scheme.zeros:
        yield make("_zero_point", "I8", *counts)
    if form.has_factor:
        yield make("_global_scale", "F32", 1)


def _name_type(dtype: str) -> str:
    """What files call a type of ours."""
    return next((each.safetensors for name, each in ELEMENT_FORMATS.items() if name == dtype), dtype)


def _write_header(stream: BinaryIO, parts: list[_Part]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for part in parts:
        header[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [start, start + part.size]}
        start += part.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)


def _write_tensor(
    stream: BinaryIO, file: SafetensorsFile, name: str, scheme: RoundingScheme, quantized: bool
) -> list[TensorError]:
    """Writes the data of a tensor, or of the parts of a quantized one."""
    if not quantized:
        stream.write(memoryview(file.read_bytes(name)))  # type: ignore[arg-type]
        return []
    weight = file.array(name)
    rows, depth = weight.shape
    step = max(1, ROWS_AT_ONCE // max(1, depth))
    if scheme.has_blocks:
        step = max(1, step // scheme.group) * scheme.group  # blocks are whole
    factor = UNIT_FACTOR
    if scheme.form.has_factor:
        most = max((float(np.abs(weight[n : n + step]).max(initial=0)) for n in range(0, rows, step)), default=0.0)
        global_scale = find_global_scale(most, scheme.form)
        factor = UNIT_FACTOR / global_scale
    scales: list[Array] = []
    zeros: list[Array] = []
    square = lost = 0.0
    for start in range(0, rows, step):
        try:
            part = weight[start : start + step]
            rounded = round_floats(part, scheme, factor) if scheme.form.is_float else round_rows(part, scheme)
        except ValueError as error:
            raise ArrayFault(f"'{name[:100]}' cannot be quantized: {error}", where=file.path) from None
        values = rounded.values if scheme.bits == 8 or scheme.form.is_float else pack_words(rounded.values, 4)
        _write_array(stream, values)
        scales.append(rounded.scales)
        zeros += [] if rounded.zeros is None else [rounded.zeros]
        square, lost = square + rounded.square, lost + rounded.lost
    _write_array(stream, np.concatenate(scales))
    if zeros:
        points = np.concatenate(zeros)
        _write_array(stream, points if scheme.bits == 8 else pack_words(points.T, 4).T)
    if scheme.form.has_factor:
        _write_array(stream, np.array([global_scale]))
    return [TensorError(name, (rows, depth), (lost / square) ** 0.5 if square else 0.0)]


def _write_array(stream: BinaryIO, array: Array) -> None:
    dense = np.ascontiguousarray(array)
    if dense.dtype.kind in "if" and dense.itemsize > 1:
        dense = dense.astype(dense.dtype.newbyteorder("<"), copy=False)
    stream.write(memoryview(dense.view(np.uint8).reshape(-1)))  # type: ignore[arg-type]


def _write_json(path: Path, document: dict[str, Any]) -> None:
    with open(path, "xb") as stream:
        stream.write((json.dumps(document, indent=2) + "\n").encode())
        _sync(stream)


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
