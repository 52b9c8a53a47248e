"""Reading safetensors files, strictly: the header is bounded and checked whole, the data is mapped and never copied.

The format is eight bytes of header length, a JSON header, and data that the header's offsets must cover without gaps
or overlaps. A reader of our own keeps weights on disk until a block of them is wanted.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from einc_runtime.dtypes import ITEMSIZE, Array, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.strict_json import parse_json

MAX_HEADER = 100_000_000
"""The format's own limit, in bytes."""

_NAMES = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "I32": "i32", "I64": "i64", "BOOL": "bool"}


Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor's entry in the header."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored tensor: its type as the runtime calls it (or as the file does, where it knows no such type), its shape,
    and its bytes in the data section."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A mapped file; arrays of it are views that read from disk what is used of them."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < 8:
                raise self._fault("it is too short to be a safetensors file")
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(MAX_HEADER, size - 8):
                raise self._fault(f"it says that its header has {length} bytes, and is {size} bytes long itself")
            self.entries = self._entries(stream.read(length), size - 8 - length)
            self._start = 8 + length
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def array(self, name: str) -> Array:
        """A tensor of a type that the runtime knows, read-only."""
        entry = self.entries[name]
        dtype = storage_dtype(entry.dtype)
        count = math.prod(entry.shape)
        if entry.dtype == "bool":
            flags: Array = np.frombuffer(self._data, np.uint8, count, self._start + entry.begin) != 0
            return flags.reshape(entry.shape)
        if entry.dtype == "bf16":
            raw = np.frombuffer(self._data, "<u2", count, self._start + entry.begin).astype(np.uint16, copy=False)
            return raw.view(dtype).reshape(entry.shape)
        stored = np.frombuffer(self._data, dtype.newbyteorder("<"), count, self._start + entry.begin)
        return stored.astype(dtype, copy=False).reshape(entry.shape)

    def _entries(self, header: bytes, available: int) -> dict[str, Entry]:
        try:
            fields = parse_json(header)
        except ValueError as error:
            raise self._fault(f"its header is no JSON object with distinct names: {error}") from None
        if not isinstance(fields, dict):
            raise self._fault("its header is no JSON object")
        entries = {name: self._entry(name, value) for name, value in fields.items() if name != "__metadata__"}
        reached = 0
        for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != reached:
                raise self._fault(
                    f"the data of '{name[:100]}' begins at {entry.begin}, not at {reached} where it should"
                )
            reached = entry.end
        if reached != available:
            raise self._fault(f"its header accounts for {reached} bytes of data, and it has {available}")
        return entries

    def _entry(self, name: str, value: object) -> Entry:
        try:
            fields = msgspec.convert(value, _Fields)
        except msgspec.ValidationError as error:
            raise self._fault(f"its header does not say what '{name[:100]}' is: {error}") from None
        begin, end = fields.data_offsets
        entry = Entry(_NAMES.get(fields.dtype, fields.dtype), fields.shape, begin, end)
        if end < begin or (entry.dtype in ITEMSIZE and end - begin != math.prod(fields.shape) * ITEMSIZE[entry.dtype]):
            shown = f"{fields.dtype[:20]}{list(fields.shape)}"
            raise self._fault(f"'{name[:100]}' is {shown} by its header, in {end - begin} bytes")
        return entry

    def _fault(self, message: str) -> ArrayFault:
        return ArrayFault(message, where=self.path)
