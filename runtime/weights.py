"""Weights by name from a safetensors file or a directory of them, from an .npz file, or drawn (`rand:SEED`).

All problems with a source are reported together, before any data is read. A stored tensor has the declared type, or is
float32 and rounded to the declared floating type, or is a narrower floating type that the declared one contains; its
shape is the declared one, or regroups it in order.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack

import msgspec

from runtime.arrays import NpzFile, tensor_text
from runtime.bundle import Bundle, Tensor
from runtime.draws import random_input
from runtime.dtypes import FLOATS, Array, name_of, storage
from runtime.errors import ArrayFault, did_you_mean, raise_together
from runtime.safetensors import SafetensorsFile
from runtime.shards import open_folder

RANDOM = "rand:"

_CONVERTED = {("f32", wanted) for wanted in FLOATS} | {("f16", "f32"), ("f16", "f64"), ("bf16", "f32"), ("bf16", "f64")}
"""Stored and declared types that may differ: float32 is rounded or widened, 16-bit floats are widened."""

Stored = tuple[str, tuple[int, ...], Callable[[Tensor], Array]]
"""A stored array's type, its shape, and how to read it as a tensor of that shape."""


def weights_of(bundle: Bundle) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in bundle.tensors if tensor.kind == "weight")


def read_weights(tensors: Sequence[Tensor], source: str | os.PathLike[str]) -> dict[str, Array]:
    """All of these weights, by their names in the plan, in their types and shapes; see `each_weight`."""
    dtypes = {tensor.name: storage(tensor.dtype) for tensor in tensors}
    return {name: array.astype(dtypes[name], copy=False) for name, array in each_weight(tensors, source)}


def each_weight(tensors: Sequence[Tensor], source: str | os.PathLike[str]) -> Iterator[tuple[str, Array]]:
    """The weights one after another, in their shapes, and in the types in which they are stored.

    Safetensors files are mapped: what is read of an array is read from disk, and nothing else.
    Raises ArrayFault, with a line for each weight that is missing or unfit, before the first; OSError where a file
    cannot be read.
    """
    path = os.fspath(source)
    if path.startswith(RANDOM):
        seed = parse_seed(path)
        for tensor in tensors:
            yield tensor.name, random_input(tensor, seed)
        return
    with ExitStack() as stack:
        stored = _open(path, stack, {name for tensor in tensors for name in (tensor.name, tensor.stored)})
        raise_together([problem for tensor in tensors if (problem := _problem(tensor, stored)) is not None], path)
        for tensor in tensors:
            _, shape, read = stored[_stored_name(tensor, stored)]
            yield tensor.name, read(msgspec.structs.replace(tensor, shape=shape)).reshape(tensor.shape)


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


def _open(path: str, stack: ExitStack, wanted: Set[str | None]) -> Mapping[str, Stored]:
    if os.path.isdir(path):
        return {name: _safetensors_entry(file, name) for name, file in open_folder(path).items()}
    with open(path, "rb") as stream:
        zipped = stream.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    if zipped or path.endswith(".npz"):
        archive = stack.enter_context(NpzFile.open(path))
        return {name: _npz_entry(archive, name) if name in wanted else _UNREAD for name in archive.members}
    file = SafetensorsFile(path)
    return {name: _safetensors_entry(file, name) for name in file.entries}


def _unread(tensor: Tensor) -> Array:
    raise AssertionError("an array that no weight asks for")


_UNREAD: Stored = ("unread", (), _unread)


def _npz_entry(archive: NpzFile, name: str) -> Stored:
    header = archive.header(name)
    kind = name_of(header.dtype.newbyteorder("=")) or str(header.dtype)
    return kind, header.shape, lambda tensor: archive.read(name, tensor, rounded=True)


def _safetensors_entry(file: SafetensorsFile, name: str) -> Stored:
    entry = file.entries[name]
    return entry.dtype, entry.shape, lambda _: file.array(name)


def _stored_name(tensor: Tensor, stored: Mapping[str, Stored]) -> str:
    """A weight is looked up under the name that the model gives for files, else under its own."""
    return tensor.stored if tensor.stored is not None and tensor.stored in stored else tensor.name


def _problem(tensor: Tensor, stored: Mapping[str, Stored]) -> str | None:
    name = _stored_name(tensor, stored)
    wanted = f"weight '{tensor.name}'" + (f" (stored as '{tensor.stored}')" if tensor.stored is not None else "")
    if name not in stored:
        hint = did_you_mean(tensor.stored or tensor.name, list(stored))
        return f"{wanted} is not there" + (f"; {hint}" if hint else "")
    dtype, shape, _ = stored[name]
    if (dtype == tensor.dtype or (dtype, tensor.dtype) in _CONVERTED) and regroups(shape, tensor.shape):
        return None
    return f"{wanted} should be {tensor_text(tensor)}, found {dtype}{list(shape)}"
