"""Reads `.pt2` archives of `torch.export.save` as data: JSON and the raw bytes of tensors.

An archive is a zip file of entries that are not compressed. What is pickled in it, as sample inputs are, is never
opened; a weight that is pickled is refused. Sizes are checked before anything is read.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from einc.errors import ReadError
from einc.importers.arrays.element_types import ElementType
from einc_runtime.strict_json import parse_json
from einc_runtime.text import escape_text

Elements = np.ndarray[Any, np.dtype[Any]]

MAX_MODEL_BYTES = 256 * 2**20
"""The JSON of a graph. Its size is that of the graph: 1 MB for about 100 operators."""
MAX_DIRECTORY_BYTES = 64 * 2**20
"""The list of entries: about 100 bytes for each."""
MAX_TENSORS = 100_000
"""The largest models have some thousands."""
MAX_DIMENSIONS = 32
"""As many as tensors of the language have."""

SCALAR_TYPES = {
    1: ElementType.U8, 2: ElementType.I8, 3: ElementType.I16, 4: ElementType.I32, 5: ElementType.I64,
    6: ElementType.F16, 7: ElementType.F32, 8: ElementType.F64, 12: ElementType.BOOL, 13: ElementType.BF16,
    28: ElementType.U16, 34: ElementType.U32, 35: ElementType.U64,
}  # fmt: skip
"""The numbers of element types in the JSON (torch/_export/serde/schema.py, version 8)."""
COMPLEX_TYPES = {9: ElementType.F16, 10: ElementType.F32, 11: ElementType.F64}
"""The same of complex numbers, with the type of their two parts."""
_FLOAT8_TYPES = {29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz"}
"""Element types of torch that no import has."""

_END_OF_DIRECTORY = b"PK\x05\x06"
_STRIDED = 7
"""The layout of dense tensors in the schema."""

Natural = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Number(msgspec.Struct):
    as_int: Natural


class _TensorMeta(msgspec.Struct):
    dtype: int
    sizes: Annotated[list[_Number], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    strides: Annotated[list[_Number], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    storage_offset: _Number
    layout: int = _STRIDED


class _Payload(msgspec.Struct):
    path_name: str
    use_pickle: bool = False
    tensor_meta: _TensorMeta | None = None


class _PayloadConfig(msgspec.Struct):
    config: Annotated[dict[str, _Payload], msgspec.Meta(max_length=MAX_TENSORS)]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the archive: `entry` has the bytes of its storage, of which it is a strided view (in elements).

    A tensor of complex numbers has a last dimension of 2 more, of their parts.
    """

    entry: str
    type: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class ExportArchive:
    """An archive that stays open: the document of its graph, and tensors that are read one by one.

    `tensors` are those of the state dictionary and the constants by their names. Raises ReadError.
    """

    def __init__(self, path: str, shown: str = "") -> None:
        """`shown` is what messages call the archive."""
        self.path = shown or path
        with self._reading():
            _check_directory(path)
            self._zip = zipfile.ZipFile(path)
            names = self._zip.namelist()
            roots = {name.partition("/")[0] for name in names}
            if len(roots) != 1:
                raise ReadError("it is no archive of torch.export.save: its entries are in no folder", where=self.path)
            (self._root,) = roots
            self._entries = {name.partition("/")[2]: name for name in names}
            models = sorted(e for e in self._entries if e.startswith("models/") and e.endswith(".json"))
            if len(models) != 1:
                hint = "einc reads what torch.export.save writes since torch 2.9; save the program again"
                shown = ", ".join(escape_text(model, 60) for model in models[:5]) or "none"
                raise ReadError(f"expected one entry models/*.json, found {shown}", where=self.path, hint=hint)
            if self._has("byteorder") and self._read("byteorder", 64).strip() != b"little":
                raise ReadError("its numbers are not stored as little endian", where=self.path)
            self.document = self._read_json(models[0])
            name = models[0].removeprefix("models/").removesuffix(".json")
            self.tensors: Mapping[str, StoredTensor] = {
                **self._list_tensors("data/constants/", f"{name}_constants_config.json"),
                **self._list_tensors("data/weights/", f"{name}_weights_config.json"),
            }

    def close(self) -> None:
        self._zip.close()

    def __enter__(self) -> ExportArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_tensor(self, name: str) -> Elements:
        """The elements of a tensor, as an array of their own."""
        tensor = self.tensors[name]
        with self._reading():
            info = self._zip.getinfo(self._entries[tensor.entry])
            storage = np.frombuffer(self._zip.read(info), tensor.type.numpy)
        return _view_strided(storage, tensor.shape, tensor.strides, tensor.offset).copy()

    def _list_tensors(self, folder: str, config: str) -> dict[str, StoredTensor]:
        if not self._has(folder + config):
            return {}
        try:
            payloads = msgspec.convert(self._read_json(folder + config), _PayloadConfig).config
        except msgspec.ValidationError as error:
            raise ReadError(f"{folder}{config}: {error}", where=self.path) from None
        return {
            name: self._check_tensor(name, folder + payload.path_name, payload) for name, payload in payloads.items()
        }

    def _check_tensor(self, name: str, entry: str, payload: _Payload) -> StoredTensor:
        shown, meta = escape_text(name, 100), payload.tensor_meta
        if payload.use_pickle or meta is None:
            hint = "einc opens no pickled data; make it a plain tensor before the export"
            raise ReadError(f"the tensor '{shown}' is pickled", where=self.path, hint=hint)
        type_ = SCALAR_TYPES.get(meta.dtype) or COMPLEX_TYPES.get(meta.dtype)
        if type_ is None:
            dtype = _FLOAT8_TYPES.get(meta.dtype, f"with number {meta.dtype}")
            hint = "store it in another type, such as float32, before the export"
            raise ReadError(f"the tensor '{shown}' has the element type {dtype}", where=self.path, hint=hint)
        if meta.layout != _STRIDED:
            hint = "make it dense before the export: tensor.to_dense()"
            raise ReadError(f"the tensor '{shown}' is not dense (layout {meta.layout})", where=self.path, hint=hint)
        shape, strides = (tuple(number.as_int for number in numbers) for numbers in (meta.sizes, meta.strides))
        if len(shape) != len(strides):
            raise ReadError(f"the tensor '{shown}' has {len(shape)} sizes and {len(strides)} strides", where=self.path)
        offset = meta.storage_offset.as_int
        if meta.dtype in COMPLEX_TYPES:
            shape, strides, offset = (*shape, 2), (*(2 * stride for stride in strides), 1), 2 * offset
        last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        needed = (last + 1) * type_.numpy.itemsize if math.prod(shape) else 0
        if not self._has(entry):
            raise ReadError(f"the tensor '{shown}' has no entry {escape_text(entry, 100)}", where=self.path)
        info = self._zip.getinfo(self._entries[entry])
        if info.compress_type != zipfile.ZIP_STORED:
            raise ReadError(f"the entry {escape_text(entry, 100)} is compressed", where=self.path)
        # A view that repeats elements could have any size, so a tensor is no larger than its entry.
        bytes_of_view = math.prod(shape) * type_.numpy.itemsize
        if max(needed, bytes_of_view) > info.file_size or info.file_size % type_.numpy.itemsize:
            raise ReadError(f"the tensor '{shown}' does not fit its {info.file_size:,} bytes", where=self.path)
        return StoredTensor(entry, type_, shape, strides, offset)

    def _has(self, entry: str) -> bool:
        return entry in self._entries

    def _read_json(self, entry: str) -> Any:
        try:
            return parse_json(self._read(entry, MAX_MODEL_BYTES))
        except ValueError as error:
            raise ReadError(f"{escape_text(entry, 100)}: {error}", where=self.path) from None

    def _read(self, entry: str, limit: int) -> bytes:
        info = self._zip.getinfo(self._entries[entry])
        if info.file_size > limit or info.compress_size > limit:
            raise ReadError(f"{escape_text(entry, 100)} has more than {limit:,} bytes", where=self.path)
        return self._zip.read(info)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What zipfile raises for a file that is none, as a ReadError."""
        try:
            yield
        except OSError as error:  # also for a place in the file that cannot be
            raise ReadError(f"cannot read: {error.strerror or error}", where=self.path) from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError, struct.error,
                UnicodeDecodeError, OverflowError) as error:  # fmt: skip
            raise ReadError(f"it is no archive of torch.export.save: {escape_text(str(error), 100)}",
                            where=self.path) from None  # fmt: skip


def _check_directory(path: str) -> None:
    """Refuses a directory of entries that is larger than any model has: zipfile reads it into memory whole."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 2**16 - 22))
        tail = file.read()
    end = tail.rfind(_END_OF_DIRECTORY)
    if end < 0 or len(tail) < end + 22:
        raise zipfile.BadZipFile("it is no zip file")
    (directory,) = struct.unpack_from("<I", tail, end + 12)
    if directory == 0xFFFFFFFF and end >= 20:  # the sizes stand in the record of zip64, which its locator names
        (start,) = struct.unpack_from("<Q", tail, end - 20 + 8)
        with open(path, "rb") as file:
            file.seek(min(start, size))
            record = file.read(56)
        directory = struct.unpack_from("<Q", record, 40)[0]
    if directory > MAX_DIRECTORY_BYTES:
        raise zipfile.BadZipFile(f"its directory has {directory:,} bytes")


def _view_strided(storage: Elements, shape: Sequence[int], strides: Sequence[int], offset: int) -> Elements:
    if math.prod(shape) == 0:
        return np.zeros(shape, storage.dtype)
    item = storage.itemsize
    return np.lib.stride_tricks.as_strided(
        storage[offset:], shape, [stride * item for stride in strides], writeable=False
    )
