"""What to do about sources of weights of formats that are not read, and about names that all lack or have a prefix."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Sequence

from einc_runtime.errors import ArrayFault

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
