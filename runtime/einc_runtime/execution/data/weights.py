"""Weights by name from a safetensors file or a folder of them, a GGUF or .npz file, a mapping, or random (`rand:SEED`).

All problems with a source are reported together, before any data is read. A stored array has the declared type, or is
float32 and rounded to the declared floating type, or has a narrower floating type that the declared one contains. Its
shape is the declared one, or each of its dimensions is the product of consecutive declared ones.

The name of a weight in files may stand for a part of a tensor, or for several tensors: `qkv[8:16]` are the rows of
`qkv` from 8 up to 16, and `experts.*.up` are `experts.0.up`, `experts.1.up` and so on, one for each position of the
weight's first dimension; `mlp.(gate|up)` are the rows of `mlp.gate` and behind them those of `mlp.up`, and
`experts.*.(gate|up)` these of each expert. A tensor that has exactly this name comes first. Parts of quantized weights
are converted from the layouts of published files: `gptq:NAME`, `awq:NAME`, and plain ones (`quantized_layouts`). Floats
of 8 bits are widened for wider weights (`stored_floats`). Of a list of sources, the first that has a tensor counts.

Where no tensor has a weight's name, there may be parts of it, by its name in the plan or in files: `qkv[0:8, 16:32]` is
one block, as `einc run --shards` writes them. Together they must have what is wanted of the weight (`parts`).
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import re
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from einc_runtime.dtypes import FLOATS, Array, find_dtype_name, storage_dtype
from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.data.dlpack import as_array
from einc_runtime.execution.data.gguf_file import GgufFile, is_gguf
from einc_runtime.execution.data.gguf_weights import view_gguf
from einc_runtime.execution.data.npy import NpzFile, describe_tensor
from einc_runtime.execution.data.parts import TensorPart, find_parts, join_parts
from einc_runtime.execution.data.quantized_layouts import split_layout, view_layout
from einc_runtime.execution.data.random_arrays import RANDOM_PREFIX, make_random_array, parse_seed
from einc_runtime.execution.data.safetensors import SafetensorsFile, open_folder
from einc_runtime.execution.data.stored_arrays import StoredArray, StoredArrays
from einc_runtime.execution.data.stored_floats import view_floats
from einc_runtime.plan.regions import find_needed_tensors
from einc_runtime.plan.schema import Block, Bundle, Tensor
from einc_runtime.plan.states import is_weight
from einc_runtime.text import did_you_mean

SingleSource = str | os.PathLike[str] | Mapping[str, Any]
WeightSource = SingleSource | Sequence[SingleSource]
"""A file, a folder, `rand:SEED`, or arrays by the names that they would have in a file; or a list of these, without
`rand:SEED`."""

_WIDENING_PAIRS = {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64")}
_CONVERSIONS = {("f32", declared) for declared in FLOATS} | _WIDENING_PAIRS
"""Pairs of a stored and a declared type that may differ: float32 is rounded or widened, 16-bit floats are widened."""

_JOINED_ROWS = re.compile(r"(?P<before>[^()]*)\((?P<parts>[^()|]+(?:\|[^()|]+)+)\)(?P<after>[^()]*)")
_ROW_SLICE = re.compile(r"(?P<name>.+)\[(?P<start>\d{1,18}):(?P<stop>\d{1,18})\]")


def list_weights(bundle: Bundle) -> tuple[Tensor, ...]:
    """The weights that a plan needs, and the states that are weights at first."""
    needed = find_needed_tensors(bundle)
    return tuple(tensor for t, tensor in enumerate(bundle.tensors) if is_weight(tensor) and t in needed)


def read_weights(tensors: Sequence[Tensor], source: WeightSource) -> dict[str, Array]:
    """The weights by their names in the plan, in their types and shapes; see `iterate_weights`."""
    dtypes = {tensor.name: storage_dtype(tensor.dtype) for tensor in tensors}
    return {name: array.astype(dtypes[name], copy=False) for name, array in iterate_weights(tensors, source)}


def iterate_weights(
    tensors: Sequence[Tensor],
    source: WeightSource,
    find_memory: Callable[[Tensor], Array | None] = lambda _: None,
    needed_blocks: Mapping[str, Sequence[Block]] = MappingProxyType({}),
) -> Iterator[tuple[str, Array]]:
    """The weights one after another, in their shapes and in the types in which they are stored.

    `needed_blocks` has the blocks of which the values are needed, by the weight's name; otherwise all are. Of weights
    that are stored in parts, no other parts are read.

    `find_memory` may give a weight dense memory of its shape and type. Where the weight is stored in that type, it is
    read there, so that nothing has to be copied, and that memory is what comes out.

    Raises ArrayFault before the first weight, with a line for each one that is missing or unfit, and OSError where a
    file cannot be read.
    """
    path = find_path(source)
    if path is not None and path.startswith(RANDOM_PREFIX):
        seed = parse_seed(path)
        for tensor in tensors:
            yield tensor.name, make_random_array(tensor, seed)
        return
    with ExitStack() as stack:
        for tensor, entry in _match_all(tensors, source, stack, needed_blocks):
            memory = find_memory(tensor) if entry.read_into is not None and entry.dtype == tensor.dtype else None
            if entry.read_into is not None and memory is not None:
                entry.read_into(memory)
                yield tensor.name, memory
            else:
                yield tensor.name, entry.read(tensor).reshape(tensor.shape)


def require_weights(tensors: Sequence[Tensor], source: WeightSource) -> None:
    """Raises ArrayFault as `iterate_weights` does, and reads nothing but names, types and shapes."""
    with ExitStack() as stack:
        _match_all(tensors, source, stack, {})


def _match_all(
    tensors: Sequence[Tensor], source: WeightSource, stack: ExitStack, needed_blocks: Mapping[str, Sequence[Block]]
) -> list[tuple[Tensor, StoredArray]]:
    """The stored array of every weight. Raises ArrayFault with all that is missing or unfit."""
    path = find_path(source)
    files = _open_source(source, stack)
    parts = find_parts(files.names)
    matches = [(tensor, _match(tensor, files, parts, needed_blocks.get(tensor.name))) for tensor in tensors]
    problems = [problem for _, problem in matches if isinstance(problem, str)]
    unfit = [_ROW_SLICE.sub(r"\g<name>", t.stored or t.name) for t, problem in matches if isinstance(problem, str)]
    prefix = describe_prefix(unfit, files.names) if unfit else None
    raise_together(problems if prefix is None else [prefix], path)
    return [(tensor, entry) for tensor, entry in matches if not isinstance(entry, str)]


def is_grouping_of(stored: Sequence[int], declared: Sequence[int]) -> bool:
    """Whether every stored dimension is the product of consecutive declared dimensions, in order."""
    ends = set(itertools.accumulate(declared, operator.mul, initial=1))
    return math.prod(stored) == math.prod(declared) and set(itertools.accumulate(stored, operator.mul)) <= ends


def find_path(source: WeightSource) -> str | None:
    """The path of a source, or of the first of a list that has one."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return None if isinstance(source, Mapping) else next(filter(None, map(find_path, source)), None)


def _open_source(source: WeightSource, stack: ExitStack) -> StoredArrays:
    if isinstance(source, Mapping):
        return _open_mapping(source)
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), stack)
    opened = [_open_source(part, stack) for part in source]
    by_name = {name: arrays for arrays in reversed(opened) for name in arrays.names}
    return StoredArrays(by_name, lambda name: by_name[name].find(name))


def _open_path(path: str, stack: ExitStack) -> StoredArrays:
    if os.path.isdir(path):
        folder = open_folder(path)
        plain = StoredArrays(folder, lambda name: _describe_safetensors_entry(folder[name], name))
        return view_floats(plain, lambda name: folder[name].read_bytes(name))
    if is_gguf(path):
        return view_gguf(GgufFile(path))
    if require_readable(path) or path.endswith(".npz"):
        archive = stack.enter_context(NpzFile.open(path))
        return StoredArrays(archive.members, lambda name: _describe_npz_member(archive, name))
    file = SafetensorsFile(path)
    plain = StoredArrays(file.entries, lambda name: _describe_safetensors_entry(file, name))
    return view_floats(plain, file.read_bytes)


def _open_mapping(arrays: Mapping[str, Any]) -> StoredArrays:
    def entry(name: str) -> StoredArray:
        array = as_array(name, arrays[name])
        kind = find_dtype_name(array.dtype.newbyteorder("=")) or str(array.dtype)
        return StoredArray(kind, array.shape, lambda _: array)

    return StoredArrays(arrays, entry)


def _describe_npz_member(archive: NpzFile, name: str) -> StoredArray:
    header = archive.read_header(name)
    kind = find_dtype_name(header.dtype.newbyteorder("=")) or str(header.dtype)
    return StoredArray(
        kind,
        header.shape,
        lambda tensor: archive.read(name, msgspec.structs.replace(tensor, shape=header.shape), rounded=True),
    )


def _describe_safetensors_entry(file: SafetensorsFile, name: str) -> StoredArray:
    entry = file.entries[name]
    into = (
        (lambda memory: file.read_into(name, memory)) if entry.dtype != "bool" and sys.byteorder == "little" else None
    )
    return StoredArray(entry.dtype, entry.shape, lambda _: file.array(name), into)


def _match(
    tensor: Tensor,
    files: StoredArrays,
    parts: Mapping[str, Sequence[TensorPart]],
    needed_blocks: Sequence[Block] | None,
) -> StoredArray | str:
    """The stored array of a weight, whole or in parts, or what is wrong with it."""
    weight = f"weight '{tensor.name}'" + (f" (stored as '{tensor.stored}')" if tensor.stored is not None else "")
    entry = _find(tensor, files)
    if entry is None:
        stored_parts = parts.get(tensor.stored or tensor.name) or parts.get(tensor.name)
        entry = (
            join_parts(tensor, stored_parts, files, needed_blocks or [Block.whole(tensor.shape)])
            if stored_parts
            else None
        )
    if entry is None:
        hint = did_you_mean(tensor.stored or tensor.name, list(files.names))
        return f"{weight} is not there" + (f"; {hint}" if hint else "")
    if isinstance(entry, str):
        return f"{weight} {entry}"
    if (entry.dtype == tensor.dtype or (entry.dtype, tensor.dtype) in _CONVERSIONS) and is_grouping_of(
        entry.shape, tensor.shape
    ):
        return entry
    return f"{weight} should be {describe_tensor(tensor)}, found {entry.dtype}{list(entry.shape)}"


def _find(tensor: Tensor, files: StoredArrays) -> StoredArray | str | None:
    """The array that a weight's name in files stands for, or else its own name; None where neither exists."""
    layout, name = split_layout(tensor.stored or tensor.name)
    files = view_layout(files, layout, tensor)
    entry = _find_named(name, tensor, files)
    return files.find(tensor.name) if entry is None and tensor.name in files.names else entry


def _find_named(name: str, tensor: Tensor, files: StoredArrays) -> StoredArray | str | None:
    if name in files.names:
        return files.find(name)
    if (match := _ROW_SLICE.fullmatch(name)) and match["name"] in files.names:
        return _take_rows(files.find(match["name"]), slice(int(match["start"]), int(match["stop"])))
    if tensor.shape and name.replace("*", "0", 1) in files.names:
        count = min(tensor.shape[0], len(files.names) + 1)
        return _stack([name.replace("*", str(k), 1) for k in range(count)], files)
    if match := _JOINED_ROWS.fullmatch(name):
        parts = [f"{match['before']}{part}{match['after']}" for part in match["parts"].split("|")]
        return _join_rows([_find_named(part, tensor, files) for part in parts], 1 if "*" in name else 0)
    return None


def _join_rows(parts: Sequence[StoredArray | str | None], axis: int) -> StoredArray | str | None:
    """Stored arrays one behind another along an axis, or what is wrong with them; None where one is not there."""
    arrays = [part for part in parts if isinstance(part, StoredArray)]
    if len(arrays) < len(parts):
        return next((part for part in parts if isinstance(part, str)), None)
    first = arrays[0]
    ends = {(array.dtype, array.shape[:axis], array.shape[axis + 1 :], len(array.shape)) for array in arrays}
    if len(ends) > 1 or len(first.shape) <= axis:
        return "stands for tensors that cannot be joined: their types or shapes differ"
    rows = sum(array.shape[axis] for array in arrays)
    return StoredArray(
        first.dtype,
        (*first.shape[:axis], rows, *first.shape[axis + 1 :]),
        lambda tensor: np.concatenate([array.read(tensor) for array in arrays], axis),
    )


def _take_rows(stored: StoredArray, rows: slice) -> StoredArray | str:
    """Some rows, or what is wrong with them."""
    known = stored.shape[0] if stored.shape else 0
    count = rows.stop - rows.start
    if not 0 < count <= known - rows.start:
        return f"stands for rows {rows.start} to {rows.stop} of {known}"
    return StoredArray(stored.dtype, (count, *stored.shape[1:]), lambda tensor: stored.read(tensor)[rows])


def _stack(names: Sequence[str], files: StoredArrays) -> StoredArray | str:
    """Stored arrays of one type and shape as one, or what is wrong with them."""
    missing = next((name for name in names if name not in files.names), None)
    if missing is not None:
        return f"is not there: '{missing}' is missing"
    parts = [files.find(name) for name in names]
    dtype, shape = parts[0].dtype, parts[0].shape
    if any((part.dtype, part.shape) != (dtype, shape) for part in parts):
        return "stands for tensors of different types or shapes"
    return StoredArray(dtype, (len(parts), *shape), lambda tensor: np.stack([part.read(tensor) for part in parts]))


_ZIP_MARKS = (b"PK\x03\x04", b"PK\x05\x06")
_NAME_LENGTH, _NAME = 26, 30
"""Where the first entry of a zip file has the length of its name, and the name (APPNOTE.TXT of PKWARE, 4.3.7)."""
_FIRST_BYTES = 256
"""Bytes that are read: more than the name of a first entry takes."""
_PICKLE_MARK, _PICKLE_PROTOCOLS = 0x80, range(2, 6)
_ONNX_MARK, _ONNX_VERSIONS = 0x08, range(3, 32)
"""An ONNX model begins with its field 1, the version of its format: 3 in 2017, 13 in 2025."""


def require_readable(path: str) -> bool:
    """Whether a file is a zip file. Raises ArrayFault for a format that is known and not read, and OSError."""
    with open(path, "rb") as stream:
        head = stream.read(_FIRST_BYTES)
    is_zip = head.startswith(_ZIP_MARKS)
    name = b""
    if is_zip and len(head) > _NAME:
        (length,) = struct.unpack_from("<H", head, _NAME_LENGTH)
        name = head[_NAME : _NAME + length]
    ending = os.path.splitext(path)[1].lower()
    is_text_of_json = head[8:9] == b"{"  # of a safetensors file, behind its length
    if name.endswith(b"data.pkl") or (len(head) > 1 and head[0] == _PICKLE_MARK and head[1] in _PICKLE_PROTOCOLS):
        message = "this is a file of torch.save, which is pickled"
        hint = (
            "in Python, give its arrays: loadWeights(torch.load(FILE, weights_only=True)); or write a safetensors "
            "file: safetensors.torch.save_file(module.state_dict(), FILE)"
        )
    elif b"archive_format" in name or ending == ".pt2":
        message = "this is a program of torch.export"
        hint = "`einc import torch FILE -o DIR` writes its weights; give that folder"
    elif not is_text_of_json and len(head) > 1 and head[0] == _ONNX_MARK and head[1] in _ONNX_VERSIONS:
        message = "this is an ONNX model"
        hint = "`einc import onnx FILE -o DIR` writes its weights; give that folder"
    else:
        return is_zip
    raise ArrayFault(message, where=path, hint=hint)


def describe_prefix(stored_names: Sequence[str], names: Collection[str]) -> str | None:
    """What to do where all names have one prefix that those of the plan lack, or lack one that all of these have.

    Nothing is said of weights that a plan takes from tensors of another layout (`gptq:m.qweight`).
    """
    first = stored_names[0]
    if ":" in first:
        return None
    for name in names:
        if name.endswith(first) and name != first:
            prefix = name.removesuffix(first)
            if all(prefix + weight in names for weight in stored_names):
                return (
                    f"all names begin with '{prefix}' there, as in '{name}', which the plan calls '{first}': "
                    f"give them without it, {{name.removeprefix('{prefix}'): array, ...}}"
                )
        elif first.endswith(name) and name != first:
            prefix = first.removesuffix(name)
            if all(weight.startswith(prefix) and weight.removeprefix(prefix) in names for weight in stored_names):
                return (
                    f"no name begins with '{prefix}' there, as in '{first}' of the plan, which is '{name}' there: "
                    f"give them with it, {{'{prefix}' + name: array, ...}}"
                )
    return None
