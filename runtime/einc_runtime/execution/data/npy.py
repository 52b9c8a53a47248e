"""Reads arrays from untrusted .npy and .npz files: the header is compared with the plan before memory is taken.

A header that does not describe exactly the plan's tensor is refused, so a file cannot make this process allocate more
than the plan says. Nothing is ever unpickled. Any byte order and Fortran order are read.
"""

from __future__ import annotations

import ast
import errno
import math
import os
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from einc_runtime.dtypes import Array, DType, find_dtype_name, storage_dtype
from einc_runtime.errors import ArrayFault, MissingFault
from einc_runtime.plan.schema import Tensor
from einc_runtime.text import escape_text, quote_names

NPY_MAGIC = b"\x93NUMPY"
MAX_NPY_HEADER_BYTES = 10_000
"""The limit of a header's text; numpy has the same limit for untrusted files."""
READ_BYTES = 1 << 20
"""Bytes of a pipe that are read at a time: a limit of time is noticed between two reads."""
STDIN = "-"

_NPY_DTYPES = {"f2": "f16", "f4": "f32", "f8": "f64", "i4": "i32", "i8": "i64", "b1": "bool"}


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a .npy header says. `dtype` has the byte order of the file; `size` is that of the header, in bytes."""

    dtype: DType
    shape: tuple[int, ...]
    fortran: bool
    size: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def describe_tensor(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def read_npy(path: str | os.PathLike[str], tensor: Tensor, rounded: bool = False) -> Array:
    """The array in a .npy file, in the tensor's type and shape; `-` reads standard input.

    A float32 file is rounded for a bf16 tensor, and with `rounded` for a tensor of any floats. Raises ArrayFault for
    anything that is not exactly such a file, and OSError where it cannot be read.
    """
    if os.fspath(path) == STDIN:
        return NpyFile(sys.stdin.buffer, STDIN, None).read(tensor, rounded)
    with open(path, "rb") as stream:
        status = os.fstat(stream.fileno())
        regular = (status.st_mode & 0o170000) == 0o100000
        return NpyFile(stream, os.fspath(path), status.st_size if regular else None).read(tensor, rounded)


def read_npz(path: str | os.PathLike[str], expected: Mapping[str, Tensor]) -> dict[str, Array]:
    """The arrays of an .npz file, each named as one of the expected tensors; not all of them need to be in it.

    Raises ArrayFault for members that are not expected, are there twice, or are not what the plan says.
    """
    with NpzFile.open(path) as archive:
        extra = [name for name in archive.members if name not in expected]
        if extra:
            raise ArrayFault(
                f"it holds {quote_names(extra)}, which the plan does not ask for",
                where=archive.path,
                hint=f"the plan asks for {quote_names(list(expected))}",
            )
        return {name: archive.read(name, expected[name]) for name in archive.members}


class NpyFile:
    """A stream that should hold one array. `length` is its size in bytes where it is known beforehand."""

    def __init__(self, stream: IO[bytes], where: str, length: int | None) -> None:
        self.stream, self.where, self.length = stream, where, length

    def read(self, tensor: Tensor, rounded: bool = False) -> Array:
        """The array in the tensor's type. `rounded` accepts f32 for any floating type, and f16 for wider ones."""
        header = self.read_header()
        acceptable = _is_acceptable(header.dtype, tensor.dtype, rounded)
        if header.shape != tensor.shape or not acceptable:
            described = f"{find_dtype_name(header.dtype.newbyteorder('='))}{list(header.shape)}"
            hint = None
            if tensor.dtype == "bf16" and not acceptable:
                hint = "numpy files cannot hold bf16: write float32, which is rounded"
            raise self._fault(f"expected {describe_tensor(tensor)} for '{tensor.name}', found {described}", hint)
        if self.length is not None and self.length != header.size + header.bytes:
            fault = "has bytes after the array" if self.length > header.size + header.bytes else "is cut short"
            raise self._fault(f"it {fault}: {self.length} bytes, where its header says {header.size + header.bytes}")
        return self._read_elements(header).astype(storage_dtype(tensor.dtype), copy=False)

    def read_header(self) -> NpyHeader:
        start = self._read_exactly(8, "header")
        if start[:6] != NPY_MAGIC:
            zipped = " (it is a zip archive: name it .npz)" if start[:4] == b"PK\x03\x04" else ""
            raise self._fault(f"it is not a .npy file{zipped}")
        version = (start[6], start[7])
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise self._fault(f"it has version {version[0]}.{version[1]} of the .npy format; 1.0 to 3.0 are known")
        width = 2 if version == (1, 0) else 4
        (length,) = struct.unpack("<H" if width == 2 else "<I", self._read_exactly(width, "header"))
        if length > MAX_NPY_HEADER_BYTES:
            raise self._fault(f"its header is {length} bytes long; at most {MAX_NPY_HEADER_BYTES} are read")
        try:
            text = self._read_exactly(length, "header").decode("utf-8" if version == (3, 0) else "latin-1")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a text that is odd, but a literal
                fields = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise self._fault("its header is not a Python literal") from None
        return self._check_header(fields, 8 + width + length)

    def _check_header(self, fields: Any, size: int) -> NpyHeader:
        if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
            raise self._fault("its header does not have exactly the fields descr, fortran_order and shape")
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        if not isinstance(descr, str):
            raise self._fault("it holds records; an array of plain numbers is expected")
        if descr[:1] not in ("<", ">", "|") or descr[1:] not in _NPY_DTYPES or (descr[0] == "|") != (descr[1:] == "b1"):
            raise self._fault(f"its elements are of type '{descr[:40]}'; expected one of {', '.join(_NPY_DTYPES)}")
        if not isinstance(fortran, bool):
            raise self._fault("fortran_order in its header is neither True nor False")
        if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            raise self._fault("the shape in its header is not a tuple of sizes")
        return NpyHeader(np.dtype(descr), shape, fortran, size)

    def _read_elements(self, header: NpyHeader) -> Array:
        try:
            array = np.empty(header.shape, header.dtype, order="F" if header.fortran else "C")
        except (MemoryError, ValueError):
            raise MissingFault(f"{header.bytes:,} bytes of memory are not available", where=self.where) from None
        memory = memoryview(array.reshape(-1, order="A").view(np.uint8))  # type: ignore[arg-type]
        filled = 0
        while filled < header.bytes:
            chunk = self.stream.read(min(READ_BYTES, header.bytes - filled))
            if not chunk:
                raise self._fault(f"it is cut short: {filled} bytes of data, where its header says {header.bytes}")
            memory[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if self.stream.read(1):
            raise self._fault("it has bytes after the array")
        if header.dtype == np.bool_:
            array = array.view(np.uint8) != 0  # a file may hold any byte
        return array.astype(header.dtype.newbyteorder("="), copy=False)

    def _read_exactly(self, count: int, part: str) -> bytes:
        data = self.stream.read(count)  # a buffered stream returns fewer bytes only at its end
        if len(data) < count:
            raise self._fault(f"it ends within its {part}")
        return data

    def _fault(self, message: str, hint: str | None = None) -> ArrayFault:
        return ArrayFault(message, where=self.where, hint=hint)


def _is_acceptable(stored: DType, declared: str, rounded: bool) -> bool:
    name = find_dtype_name(stored.newbyteorder("="))
    if rounded and (name, declared) in (("f16", "f32"), ("f16", "f64")):
        return True
    widest = ("f16", "bf16", "f64") if rounded else ("bf16",)
    return name == declared or (name == "f32" and declared in widest)


class NpzFile:
    """An .npz archive. `members` maps array names to their entries; sizes are checked before data is decompressed."""

    def __init__(self, archive: zipfile.ZipFile, path: str) -> None:
        self.path, self._archive = path, archive
        self.members: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            where = self._place(entry)
            if name == entry.filename:
                raise ArrayFault("the archive's members should be arrays named NAME.npy", where=where)
            if name in self.members:
                raise ArrayFault("it is in the archive twice", where=where)
            if entry.flag_bits & 0x1:
                raise ArrayFault("it is encrypted", where=where)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ArrayFault("it is compressed in a way that numpy does not write", where=where)
            self.members[name] = entry

    @staticmethod
    @contextmanager
    def open(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
        where = os.fspath(path)
        if where == STDIN:
            raise ArrayFault("an archive cannot be read from standard input", where=where)
        with open(path, "rb") as stream:
            if not stream.seekable():
                raise ArrayFault("an archive cannot be read from a pipe", where=where)
            with NpzFile.of(stream, where) as archive:
                yield archive

    @staticmethod
    @contextmanager
    def of(stream: IO[bytes], where: str) -> Iterator[NpzFile]:
        """The archive in a stream that can be moved in."""
        with _refuse_broken_zip(where), zipfile.ZipFile(stream) as archive:
            yield NpzFile(archive, where)

    def read(self, name: str, tensor: Tensor, rounded: bool = False) -> Array:
        """The member as the tensor's array; see `NpyFile.read`."""
        with self._open_member(name) as file:
            return file.read(tensor, rounded)

    def read_header(self, name: str) -> NpyHeader:
        with self._open_member(name) as file:
            return file.read_header()

    @contextmanager
    def _open_member(self, name: str) -> Iterator[NpyFile]:
        entry = self.members[name]
        with _refuse_broken_zip(self._place(entry)), self._archive.open(entry) as stream:
            yield NpyFile(stream, self._place(entry), entry.file_size)

    def _place(self, entry: zipfile.ZipInfo) -> str:
        return f"{self.path}: {escape_text(entry.filename, 100)}"


@contextmanager
def _refuse_broken_zip(where: str) -> Iterator[None]:
    """Raises ArrayFault for every error that a broken archive causes, also for a seek to an impossible position."""
    try:
        yield
    except (
        zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error,
        LookupError, OverflowError, OSError,
    ) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise ArrayFault(f"the archive is broken: {escape_text(str(error), 100)}", where=where) from None
