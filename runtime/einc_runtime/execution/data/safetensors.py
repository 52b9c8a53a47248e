"""Reads safetensors files and folders of them strictly: the whole header is limited and checked.

The format is eight bytes of header length, a JSON header, and data that the header's offsets must cover without gaps
or overlaps. This reader leaves tensors on disk until they are needed.

Which files of a folder belong to the model is as in transformers: `model.safetensors` alone, where it exists; else
those that an index (`model.safetensors.index.json`) names, with the file of every tensor. Without both, all files with
this suffix belong to it, and no two may have a tensor of the same name.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np

from einc_runtime.dtypes import ITEMSIZE, Array, storage_dtype
from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.data.stored_arrays import StoredBytes
from einc_runtime.execution.data.stored_floats import find_packed
from einc_runtime.plan.element_types import ELEMENT_FORMATS
from einc_runtime.plan.schema import MAX_RANK
from einc_runtime.strict_json import parse_json

INDEX_FILE = "model.safetensors.index.json"
SUFFIX = ".safetensors"
SINGLE_FILE = "model.safetensors"
MAX_INDEX_BYTES = 64 * 2**20
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""

_NAMED = {each.safetensors: (str(name), each) for name, each in ELEMENT_FORMATS.items() if each.safetensors}
_SAFETENSORS_DTYPES = {stored: name for stored, (name, each) in _NAMED.items() if each.numpy or name == "bf16"}
"""Floats of 8 bits keep the names that files have for them: what is read widens them, or not."""

_STORED_SIZES = {**ITEMSIZE, **{stored: each.width for stored, (_, each) in _NAMED.items()}}
"""Bytes of an element, also of types that the runtime widens."""

Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _HeaderEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A tensor in the header, as it stands in the file."""

    dtype: str
    shape: tuple[Natural, ...]
    data_offsets: tuple[Natural, Natural]


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """A stored tensor: its type, its shape, and its bytes in the data section.

    `dtype` is the runtime's name for the type, or the file's where the runtime has no such type.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A file, which stays open, of which tensors are read one by one."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < 8:
                raise self._fault("it is too short to be a safetensors file")
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(MAX_SAFETENSORS_HEADER_BYTES, size - 8):
                raise self._fault(f"it says that its header has {length} bytes, but the whole file has {size}")
            self.entries = self._read_header(stream.read(length), size - 8 - length)
            self._start = 8 + length
            self._bytes = StoredBytes(path, stream)

    def array(self, name: str) -> Array:
        """A tensor of a type that the runtime has. Raises ArrayFault where the file has become shorter."""
        entry = self.entries[name]
        dtype = storage_dtype(entry.dtype)
        data = self._read(entry)
        if entry.dtype == "bool":
            flags: Array = data != 0
            return flags.reshape(entry.shape)
        if entry.dtype == "bf16":
            return data.view("<u2").astype(np.uint16, copy=False).view(dtype).reshape(entry.shape)
        return data.view(dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(entry.shape)

    def read_bytes(self, name: str) -> Array:
        """The bytes of a tensor of any type. Raises ArrayFault where the file has become shorter."""
        return self._read(self.entries[name])

    def read_into(self, name: str, memory: Array) -> None:
        """Reads the bytes of a tensor into a dense array of as many bytes. Raises ArrayFault as `array` does."""
        self._bytes.fill(self._start + self.entries[name].begin, memory.reshape(-1).view(np.uint8))

    def _read(self, entry: SafetensorsEntry) -> Array:
        return self._bytes.read(self._start + entry.begin, entry.end - entry.begin)

    def _read_header(self, header: bytes, available: int) -> dict[str, SafetensorsEntry]:
        try:
            fields = parse_json(header)
        except ValueError as error:
            raise self._fault(f"its header is not a JSON object with distinct names: {error}") from None
        if not isinstance(fields, dict):
            raise self._fault("its header is not a JSON object")
        entries = {name: self._check_entry(name, value) for name, value in fields.items() if name != "__metadata__"}
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

    def _check_entry(self, name: str, value: object) -> SafetensorsEntry:
        try:
            fields = msgspec.convert(value, _HeaderEntry)
        except msgspec.ValidationError as error:
            raise self._fault(f"its header does not say what '{name[:100]}' is: {error}") from None
        if len(fields.shape) > MAX_RANK:
            raise self._fault(f"'{name[:100]}' has {len(fields.shape)} dimensions, and at most {MAX_RANK} can be read")
        begin, end = fields.data_offsets
        entry = SafetensorsEntry(_SAFETENSORS_DTYPES.get(fields.dtype, fields.dtype), fields.shape, begin, end)
        if end < begin or (
            entry.dtype in _STORED_SIZES and end - begin != math.prod(fields.shape) * _STORED_SIZES[entry.dtype]
        ):
            described = f"{fields.dtype[:20]}{list(fields.shape)}"
            raise self._fault(f"'{name[:100]}' is {described} by its header, in {end - begin} bytes")
        return entry

    def _fault(self, message: str) -> ArrayFault:
        return ArrayFault(message, where=self.path)


def open_folder(path: str) -> dict[str, SafetensorsFile]:
    """The file of every tensor of the folder.

    Raises ArrayFault where a file or the index is broken or they contradict each other, and OSError where one cannot
    be read.
    """
    named = _read_index(path)
    if named is None:
        return _open_all(path)
    opened = {file: SafetensorsFile(os.path.join(path, file)) for file in sorted(set(named.values()))}
    missing = [name for name, file in named.items() if name not in opened[file].entries]
    raise_together([f"'{name[:100]}' is not in {named[name]}, where the index has it" for name in missing], path)
    return {name: opened[file] for name, file in named.items()}


def list_stored_names(path: str) -> frozenset[str] | None:
    """The names of all tensors of the folder, or None where it has neither safetensors files nor an index. Floats of 4
    bits, which a model has as a whole, have the name of that, too.

    Where an index counts, only the index is read, so that its files need not be there.
    """
    named = _read_index(path, files_needed=False)
    names = named if named is not None else _open_all(path) if _list_files(path) else None
    return None if names is None else frozenset({*names, *find_packed(names)})


def _list_files(path: str) -> list[Path]:
    """The files of a folder without an index: one of the usual name is alone, whatever is beside it."""
    single = Path(path) / SINGLE_FILE
    if single.is_file():
        return [single]
    return sorted(entry for entry in Path(path).iterdir() if entry.suffix == SUFFIX)


def _open_all(path: str) -> dict[str, SafetensorsFile]:
    files = _list_files(path)
    if not files:
        raise ArrayFault(f"there is no {SUFFIX} file in this folder", where=path)
    files_by_name: dict[str, SafetensorsFile] = {}
    for file in files:
        opened = SafetensorsFile(str(file))
        for name in opened.entries:
            if name in files_by_name:
                raise ArrayFault(f"'{name[:100]}' is also in another file of the folder", where=str(file))
            files_by_name[name] = opened
    return files_by_name


def _read_index(path: str, *, files_needed: bool = True) -> Mapping[str, str] | None:
    """The name of the file of every tensor, by the index of the folder; None where there is none that counts."""
    index_path = os.path.join(path, INDEX_FILE)
    if not os.path.lexists(index_path) or os.path.isfile(os.path.join(path, SINGLE_FILE)):
        return None
    if not os.path.isfile(index_path):
        raise ArrayFault("it is not a regular file", where=index_path)
    with open(index_path, "rb") as stream:
        data = stream.read(MAX_INDEX_BYTES + 1)
    if len(data) > MAX_INDEX_BYTES:
        raise ArrayFault(f"an index of more than {MAX_INDEX_BYTES // 2**20} MiB", where=index_path)
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ArrayFault(f"it is not a JSON object with distinct names: {error}", where=index_path) from None
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not named:
        raise ArrayFault("it has no 'weight_map' that names the file of every tensor", where=index_path)
    files = {file if isinstance(file, str) else repr(file) for file in named.values()}
    strange = sorted(file for file in files if not _is_plain_name(file))
    raise_together([f"{file[:100]!r} is not the name of a {SUFFIX} file beside it" for file in strange], index_path)
    if files_needed:
        absent = sorted(file for file in files if not os.path.isfile(os.path.join(path, file)))
        raise_together([f"there is no file {file[:100]}, which the index names" for file in absent], index_path)
    return named


def _is_plain_name(file: str) -> bool:
    """Whether this names a file in the folder itself; a path could lead anywhere."""
    return file.endswith(SUFFIX) and file.isprintable() and not set(file) & set("/\\:\0")


def write_tensors(stream: BinaryIO, tensors: Mapping[str, tuple[str, Array]]) -> None:
    """Writes a safetensors file of arrays with their element types, in the order of their names."""
    kinds = {dtype: stored for stored, (dtype, _) in _NAMED.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    start = 0
    for name in sorted(tensors):
        dtype, array = tensors[name]
        header[name] = {"dtype": kinds[dtype], "shape": array.shape, "data_offsets": (start, start + array.nbytes)}
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(struct.pack("<Q", len(text)) + text)
    for name in sorted(tensors):
        dense = np.ascontiguousarray(tensors[name][1])
        stream.write(memoryview(dense.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
