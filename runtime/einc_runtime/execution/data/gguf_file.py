"""Reads GGUF files, versions 2 and 3, strictly: everything before the tensors is limited and checked.

The format is a mark, a version, the numbers of tensors and of metadata, the metadata by key, a description of each
tensor, and the tensors, one after the other in the order of their places, each at a multiple of `general.alignment`.
See ggml's docs/gguf.md. Numbers are little-endian.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.data.gguf_blocks import BLOCK_TYPES
from einc_runtime.execution.data.stored_arrays import StoredBytes

MARK = b"GGUF"
GGUF_SUFFIX = ".gguf"
MAX_METADATA_BYTES = 1 << 28
"""Bytes before the tensors; vocabularies of 256,000 tokens with their merges have 20 MB."""
MAX_KEYS = 1 << 16
MAX_GGUF_TENSORS = 1 << 20
MAX_LISTED_TEXTS = 1 << 22
"""Of an array of texts, each of which takes far more memory than in the file."""
MAX_NAME_BYTES = 1 << 10
MAX_AXES = 4
_MAX_ALIGNMENT = 1 << 20
_MAX_TENSOR_ELEMENTS = 1 << 48  # more elements than a file has bytes

_GGUF_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_FLAG, _TEXT, _LIST = 7, 8, 9
_OLDEST_VERSION, _NEWEST_VERSION = 2, 3

Scalar = int | float | bool | str
MetadataValue = Scalar | list[str] | Array


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A stored tensor: its type by name, its shape with rows first, and its bytes after the start of the tensors."""

    type: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GgufFile:
    """A file, which stays open, of which tensors are read one by one."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, GgufTensor]

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            reader = _HeaderReader(stream, path, size)
            self.metadata, descriptions = reader.read_all()
            alignment = _find_alignment(self.metadata, path)
            self._start = -(-stream.tell() // alignment) * alignment
            self.tensors = _place_tensors(descriptions, alignment, size - self._start, path)
            self._bytes = StoredBytes(path, stream)

    def read(self, name: str, begin: int = 0, count: int | None = None) -> Array:
        """The bytes of a tensor, or some of them. Raises ArrayFault where the file has become shorter."""
        tensor = self.tensors[name]
        return self._bytes.read(
            self._start + tensor.begin + begin, tensor.end - tensor.begin if count is None else count
        )

    def read_into(self, name: str, memory: Array) -> None:
        """Reads the bytes of a tensor into a dense array of as many bytes."""
        self._bytes.fill(self._start + self.tensors[name].begin, memory.reshape(-1).view(np.uint8))


def is_gguf(path: str) -> bool:
    """Whether this is a file that says of itself, or by its name, that it is one."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as stream:
        return path.endswith(GGUF_SUFFIX) or stream.read(len(MARK)) == MARK


@dataclass(frozen=True, slots=True)
class _TensorDescription:
    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int
    begin: int


class _HeaderReader:
    """What stands before the tensors, read from the start of a file."""

    def __init__(self, stream: BinaryIO, path: str, size: int) -> None:
        self._stream, self._path = stream, path
        self._left = min(size, MAX_METADATA_BYTES)

    def read_all(self) -> tuple[dict[str, MetadataValue], list[_TensorDescription]]:
        mark = self._take(len(MARK), "its mark")
        if mark != MARK:
            raise self._fault(f"this is no GGUF file: it starts with {mark!r}, not with {MARK!r}")
        version = self._integer("<I")
        if not _OLDEST_VERSION <= version <= _NEWEST_VERSION:
            raise self._fault(
                f"it is of GGUF version {version}, and {_OLDEST_VERSION} and {_NEWEST_VERSION} can be read"
            )
        tensors = self._count(MAX_GGUF_TENSORS, "tensors")
        keys = self._count(MAX_KEYS, "entries of metadata")
        metadata: dict[str, MetadataValue] = {}
        for _ in range(keys):
            key = self._name("the key of an entry of metadata")
            if key in metadata:
                raise self._fault(f"its metadata has '{key[:100]}' twice")
            metadata[key] = self._value(key)
        return metadata, [self._describe() for _ in range(tensors)]

    def _describe(self) -> _TensorDescription:
        name = self._name("the name of a tensor")
        axes = self._integer("<I")
        if not 1 <= axes <= MAX_AXES:
            raise self._fault(f"'{name[:100]}' has {axes} dimensions, and 1 to {MAX_AXES} can be read")
        shape = tuple(self._integer("<Q") for _ in range(axes))[::-1]
        number, begin = self._integer("<I"), self._integer("<Q")
        if number not in BLOCK_TYPES:
            raise self._fault(f"'{name[:100]}' has elements of type {number}, which einc does not know")
        kind = BLOCK_TYPES[number]
        count = math.prod(shape)
        if not 0 < count < _MAX_TENSOR_ELEMENTS or shape[-1] % kind.elements:
            rows = "" if kind.elements == 1 else f", in rows of blocks of {kind.elements}"
            raise self._fault(f"'{name[:100]}' has the shape {list(shape)}{rows}, which cannot be")
        return _TensorDescription(name, kind.name, shape, count // kind.elements * kind.bytes, begin)

    def _value(self, key: str) -> MetadataValue:
        kind = self._integer("<I")
        if kind != _LIST:
            return self._scalar(kind, key)
        kind, count = self._integer("<I"), self._integer("<Q")
        if kind == _TEXT:
            if count > min(MAX_LISTED_TEXTS, self._left // 8):  # each has a length of 8 bytes
                raise self._fault(f"'{key[:100]}' says that it has {count:,} texts, which is too many for this file")
            return [self._text(f"a text of '{key[:100]}'") for _ in range(count)]
        dtype = np.dtype("u1" if kind == _FLAG else _GGUF_NUMBERS.get(kind, "V0"))
        if not dtype.itemsize:
            raise self._fault(f"'{key[:100]}' is a list of elements of type {kind}, which cannot be read")
        if count > self._left // dtype.itemsize:
            raise self._fault(f"'{key[:100]}' says that it has {count:,} elements, which is too many for this file")
        numbers: Array = np.frombuffer(self._take(count * dtype.itemsize, key), dtype)
        return numbers

    def _scalar(self, kind: int, key: str) -> Scalar:
        if kind == _TEXT:
            return self._text(f"'{key[:100]}'")
        if kind == _FLAG:
            return self._take(1, f"'{key[:100]}'") != b"\0"
        if kind not in _GGUF_NUMBERS:
            raise self._fault(f"'{key[:100]}' is of type {kind}, which GGUF does not have")
        dtype = np.dtype(_GGUF_NUMBERS[kind])
        number = np.frombuffer(self._take(dtype.itemsize, f"'{key[:100]}'"), dtype)[0]
        if dtype == "<f4":
            return float(str(number))  # what was meant: 1e-6, not 9.999999974752427e-07
        integer: int | float = number.item()
        return integer

    def _name(self, subject: str) -> str:
        length = self._integer("<Q")
        if not 0 < length <= MAX_NAME_BYTES:
            raise self._fault(f"{subject} says that it has {length:,} bytes")
        try:
            return self._take(length, subject).decode("utf-8")
        except UnicodeDecodeError:
            raise self._fault(f"{subject} is no text in UTF-8") from None

    def _text(self, subject: str) -> str:
        return self._take(self._integer("<Q"), subject).decode("utf-8", "replace")

    def _count(self, maximum: int, subject: str) -> int:
        count = self._integer("<Q")
        if count > maximum:
            raise self._fault(f"it says that it has {count:,} {subject}, and at most {maximum:,} can be read")
        return count

    def _integer(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form), "a number"))
        return int(number)

    def _take(self, count: int, subject: str) -> bytes:
        data = self._stream.read(count) if count <= self._left else b""
        if len(data) < count:
            raise self._fault(f"it ends, or has more than {MAX_METADATA_BYTES >> 20} MiB, before {subject} is complete")
        self._left -= count
        return data

    def _fault(self, message: str) -> ArrayFault:
        return ArrayFault(message, where=self._path)


def _find_alignment(metadata: Mapping[str, MetadataValue], path: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ArrayFault(f"general.alignment: expected a power of two, found {str(alignment)[:40]}", where=path)
    return alignment


def _place_tensors(
    descriptions: list[_TensorDescription], alignment: int, available: int, path: str
) -> dict[str, GgufTensor]:
    """Each tensor must begin where the last one ends, rounded up, and all must be in the file."""
    tensors: dict[str, GgufTensor] = {}
    reached = 0
    for tensor in sorted(descriptions, key=lambda description: description.begin):
        expected = -(-reached // alignment) * alignment
        if tensor.begin != expected:
            raise ArrayFault(
                f"the data of '{tensor.name[:100]}' begins at {tensor.begin}, not at {expected} where it should",
                where=path,
            )
        reached = expected + tensor.bytes
        if reached > available:
            raise ArrayFault(f"the data of '{tensor.name[:100]}' is cut off: the file is too short", where=path)
        if tensor.name in tensors:
            raise ArrayFault(f"it has two tensors '{tensor.name[:100]}'", where=path)
        tensors[tensor.name] = GgufTensor(tensor.type, tensor.shape, tensor.begin, reached)
    return {tensor.name: tensors[tensor.name] for tensor in descriptions}
