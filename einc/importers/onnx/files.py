"""Reading an ONNX file without trusting it: sizes are checked before memory is used, and no path leaves its folder."""

from __future__ import annotations

import math
import os
import stat
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc.importers.arrays.values import Elements, UnsupportedError
from einc.importers.onnx.nodes import read_element_type
from einc_runtime.errors import MissingFault
from einc_runtime.installing import suggest_packages
from einc_runtime.plan.schema import MAX_RANK

MAX_FILE_BYTES = 2**31
"""Protocol buffers are smaller; larger models keep their tensors in files of their own."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A model, as protocol buffers have it, and the folder that its tensors may lie in."""

    model: Any
    folder: str
    where: str


def read_onnx(path: str) -> OnnxFile:
    """Raises ModelError for what is no ONNX model, MissingFault without onnx, OSError for what cannot be read."""
    onnx = load_onnx()
    from google.protobuf.message import DecodeError

    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or size >= MAX_FILE_BYTES:
            raise UnsupportedError(f"{path}: expected a file of less than 2 GiB, found {size:,} bytes")
        content = file.read()
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, RecursionError, ValueError):
        raise UnsupportedError(f"{path}: this is no ONNX model", "the file may be cut off") from None
    if not model.HasField("graph") or not model.opset_import:
        raise UnsupportedError(f"{path}: this is no ONNX model: it has no graph, or no version of its operators")
    if not _has_texts(model):
        raise UnsupportedError(f"{path}: this is no ONNX model: a name in it is no text in UTF-8")
    return OnnxFile(model, os.path.dirname(os.path.abspath(path)), path)


def _has_texts(message: Any) -> bool:
    """Whether all texts in a message, and in those that it has, are texts: other bytes come out as bytes."""
    from google.protobuf.message import Message

    for field, value in message.ListFields():
        if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            parts = (value,) if isinstance(value, str | bytes | Message) else value
            if not all(isinstance(part, str) or (isinstance(part, Message) and _has_texts(part)) for part in parts):
                return False
    return True


def load_onnx() -> Any:
    """The package onnx. Raises MissingFault without it."""
    try:
        import onnx
    except ImportError as error:
        raise MissingFault("reading ONNX files needs onnx", hint=suggest_packages("onnx")) from error
    return onnx


def read_tensor(tensor: Any, folder: str) -> Elements:
    """The elements of a TensorProto. Raises UnsupportedError if they are not what its shape and type say."""
    from onnx import TensorProto, numpy_helper

    type_ = read_element_type(tensor.data_type)
    shape = tuple(tensor.dims)
    if len(shape) > MAX_RANK or any(extent < 0 for extent in shape):
        raise UnsupportedError(f"tensor '{tensor.name}' has the shape {list(shape)[:MAX_RANK]}")
    size = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read_external(tensor, shape, type_.numpy, folder)
    if tensor.HasField("raw_data"):
        expected, count = size * type_.numpy.itemsize, len(tensor.raw_data)
        if count != expected:
            raise UnsupportedError(f"tensor '{tensor.name}': expected {expected:,} bytes, found {count:,}")
        return np.frombuffer(tensor.raw_data, type_.numpy.newbyteorder("<")).reshape(shape)
    fields = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    if max(map(len, fields)) != size:
        raise UnsupportedError(f"tensor '{tensor.name}': expected {size:,} elements, found {max(map(len, fields)):,}")
    try:
        elements: Elements = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedError(f"tensor '{tensor.name}' cannot be read: {error}") from None
    return elements


def _read_external(tensor: Any, shape: tuple[int, ...], dtype: np.dtype[Any], folder: str) -> Elements:
    """A tensor in a file of its own, which is mapped into memory and not read."""
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location, size = fields.get("location", ""), math.prod(shape) * dtype.itemsize
    try:
        offset, length = int(fields.get("offset", "0") or 0), int(fields.get("length", size) or size)
    except ValueError:
        raise UnsupportedError(f"tensor '{tensor.name}': its offset and length are no numbers") from None
    path = resolve_inside(folder, location, tensor.name)
    try:
        available = os.stat(path).st_size
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(f"{path} is no file")
    except OSError as error:
        raise UnsupportedError(f"tensor '{tensor.name}': {error.strerror or error}: '{location}'") from None
    if length != size or offset < 0 or offset + size > available:
        raise UnsupportedError(
            f"tensor '{tensor.name}': expected {size:,} bytes at {offset:,} of '{location}', which has {available:,}"
        )
    if size == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype.newbyteorder("<"), "r", offset, shape)


def resolve_inside(folder: str, location: str, tensor: str) -> str:
    """The path of a file in a folder or below it; links may not lead out of it."""
    base = os.path.realpath(folder)
    outside = not location or "\0" in location or os.path.isabs(location) or "\\" in location
    path = base if outside else os.path.realpath(os.path.join(base, location))
    if outside or os.path.commonpath([base, path]) != base or path == base:
        raise UnsupportedError(f"tensor '{tensor}' is in '{location}', which is not in the model's folder")
    return path
