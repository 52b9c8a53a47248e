"""Weights by name from a safetensors file or a directory of them, an .npz file, a mapping, or drawn (`rand:SEED`).

All problems with a source are reported together, before any data is read. A stored tensor has the declared type, or is
float32 and rounded to the declared floating type, or is a narrower floating type that the declared one contains; its
shape is the declared one, or regroups it in order.

The name of a weight in files may stand for a part of a tensor, or for several tensors: `qkv[8:16]` are the rows of
`qkv` from 8 up to 16, and `experts.*.up` are `experts.0.up`, `experts.1.up` and so on, one for each position of the
weight's first dimension. A tensor that is called just so comes first.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from einc_runtime.dtypes import FLOATS, Array, find_dtype_name, storage_dtype
from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.data.arrays import NpzFile, tensor_text
from einc_runtime.execution.data.draws import random_input
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.execution.data.shards import open_folder
from einc_runtime.plan.schema import Bundle, Tensor
from einc_runtime.text import did_you_mean

RANDOM = "rand:"

Source = str | os.PathLike[str] | Mapping[str, Any]
"""A file, a folder, `rand:SEED`, or arrays by the names that they would have in a file."""

_CONVERTED = {("f32", wanted) for wanted in FLOATS} | {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64")}
"""Stored and declared types that may differ: float32 is rounded or widened, 16-bit floats are widened."""

_ROWS = re.compile(r"(?P<name>.+)\[(?P<start>\d{1,18}):(?P<stop>\d{1,18})\]")


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored array's type, its shape, and how to read it for a weight."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[Tensor], Array]


@dataclass(frozen=True, slots=True)
class Files:
    """The names of all that is stored, and what there is under a name; what nobody asks for may be anything."""

    names: Collection[str]
    entry: Callable[[str], Stored]


def weights_of(bundle: Bundle) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in bundle.tensors if tensor.kind == "weight")


def read_weights(tensors: Sequence[Tensor], source: Source) -> dict[str, Array]:
    """All of these weights, by their names in the plan, in their types and shapes; see `each_weight`."""
    dtypes = {tensor.name: storage_dtype(tensor.dtype) for tensor in tensors}
    return {name: array.astype(dtypes[name], copy=False) for name, array in each_weight(tensors, source)}


def each_weight(tensors: Sequence[Tensor], source: Source) -> Iterator[tuple[str, Array]]:
    """The weights one after another, in their shapes, and in the types in which they are stored.

    Safetensors files are mapped: what is read of an array is read from disk, and nothing else.
    Raises ArrayFault, with a line for each weight that is missing or unfit, before the first; OSError where a file
    cannot be read.
    """
    path = None if isinstance(source, Mapping) else os.fspath(source)
    if path is not None and path.startswith(RANDOM):
        seed = parse_seed(path)
        for tensor in tensors:
            yield tensor.name, random_input(tensor, seed)
        return
    with ExitStack() as stack:
        files = _given(source) if isinstance(source, Mapping) else _open(os.fspath(source), stack)
        found = [(tensor, _found(tensor, files)) for tensor in tensors]
        raise_together([problem for _, problem in found if isinstance(problem, str)], path)
        for tensor, entry in found:
            if not isinstance(entry, str):
                yield tensor.name, entry.read(tensor).reshape(tensor.shape)


def parse_seed(source: str) -> int:
    """The SEED of `rand:SEED`, a natural number below 10^18."""
    digits = source.removeprefix(RANDOM)
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ArrayFault(f"'{source[:40]}' names no seed", hint="write a number, as in rand:0")
    return int(digits)


def regroups(stored: Sequence[int], declared: Sequence[int]) -> bool:
    """Whether every stored dimension is the product of consecutive declared ones, in order."""
    ends = set(itertools.accumulate(declared, operator.mul, initial=1))
    return math.prod(stored) == math.prod(declared) and set(itertools.accumulate(stored, operator.mul)) <= ends


def _open(path: str, stack: ExitStack) -> Files:
    if os.path.isdir(path):
        folder = open_folder(path)
        return Files(folder, lambda name: _safetensors_entry(folder[name], name))
    with open(path, "rb") as stream:
        zipped = stream.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    if zipped or path.endswith(".npz"):
        archive = stack.enter_context(NpzFile.open(path))
        return Files(archive.members, lambda name: _npz_entry(archive, name))
    file = SafetensorsFile(path)
    return Files(file.entries, lambda name: _safetensors_entry(file, name))


def _given(arrays: Mapping[str, Any]) -> Files:
    def entry(name: str) -> Stored:
        array = arrays[name]
        if not isinstance(array, np.ndarray | np.generic):
            raise ArrayFault(f"'{name}' is no numpy array but {type(array).__name__}")
        kind = find_dtype_name(array.dtype.newbyteorder("=")) or str(array.dtype)
        return Stored(kind, array.shape, lambda _: np.asarray(array))

    return Files(arrays, entry)


def _npz_entry(archive: NpzFile, name: str) -> Stored:
    header = archive.header(name)
    kind = find_dtype_name(header.dtype.newbyteorder("=")) or str(header.dtype)
    return Stored(
        kind,
        header.shape,
        lambda tensor: archive.read(name, msgspec.structs.replace(tensor, shape=header.shape), rounded=True),
    )


def _safetensors_entry(file: SafetensorsFile, name: str) -> Stored:
    entry = file.entries[name]
    return Stored(entry.dtype, entry.shape, lambda _: file.array(name))


def _found(tensor: Tensor, files: Files) -> Stored | str:
    """What there is of a weight, or what is wrong."""
    wanted = f"weight '{tensor.name}'" + (f" (stored as '{tensor.stored}')" if tensor.stored is not None else "")
    entry = _entry(tensor, files)
    if entry is None:
        hint = did_you_mean(tensor.stored or tensor.name, list(files.names))
        return f"{wanted} is not there" + (f"; {hint}" if hint else "")
    if isinstance(entry, str):
        return f"{wanted} {entry}"
    if (entry.dtype == tensor.dtype or (entry.dtype, tensor.dtype) in _CONVERTED) and regroups(
        entry.shape, tensor.shape
    ):
        return entry
    return f"{wanted} should be {tensor_text(tensor)}, found {entry.dtype}{list(entry.shape)}"


def _entry(tensor: Tensor, files: Files) -> Stored | str | None:
    """What a weight's name for files stands for, or else its own name; None where neither is there."""
    name = tensor.stored or tensor.name
    if name in files.names:
        return files.entry(name)
    if (match := _ROWS.fullmatch(name)) and match["name"] in files.names:
        return _rows(files.entry(match["name"]), slice(int(match["start"]), int(match["stop"])))
    if tensor.shape and name.replace("*", "0", 1) in files.names:
        most = min(tensor.shape[0], len(files.names) + 1)
        return _stack([name.replace("*", str(k), 1) for k in range(most)], files)
    return files.entry(tensor.name) if tensor.name in files.names else None


def _rows(whole: Stored, rows: slice) -> Stored:
    """Some rows, or as many of them as there are."""
    count = len(range(*rows.indices(whole.shape[0] if whole.shape else 0)))
    return Stored(whole.dtype, (count, *whole.shape[1:]), lambda tensor: whole.read(tensor)[rows])


def _stack(names: Sequence[str], files: Files) -> Stored | str:
    """Tensors of one type and shape as one."""
    lost = next((name for name in names if name not in files.names), None)
    if lost is not None:
        return f"is not there: '{lost}' is missing"
    parts = [files.entry(name) for name in names]
    dtype, shape = parts[0].dtype, parts[0].shape
    if any((part.dtype, part.shape) != (dtype, shape) for part in parts):
        return "stands for tensors of different types or shapes"
    return Stored(dtype, (len(parts), *shape), lambda tensor: np.stack([part.read(tensor) for part in parts]))
