"""Capsules of DLPack made by hand, with any content, which count how often their record is deleted."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("tensor", Tensor),
    )  # fmt: skip


_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes, _new.restype = [ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR], ctypes.py_object
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass
class Given:
    """An object with `__dlpack__`, whose record says what an array is, with changes. `deleted` counts calls."""

    array: np.ndarray
    version: tuple[int, int] | None = (1, 0)
    flags: int = 0
    device: tuple[int, int] = (1, 0)
    changes: dict[str, Any] = field(default_factory=dict)
    shape: Sequence[int] | None = None
    strides: Sequence[int] | str | None = "of the array"
    deleted: int = 0
    options_given: list[dict[str, Any]] = field(default_factory=list)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.options_given.append(options)
        if self.version is None and options:
            raise TypeError("unexpected keyword argument")
        array = self.array
        kind, name = (Managed, b"dltensor") if self.version is None else (Versioned, b"dltensor_versioned")
        shape = tuple(array.shape if self.shape is None else self.shape)
        strides = (
            tuple(step // array.itemsize for step in array.strides) if isinstance(self.strides, str) else self.strides
        )
        self._numbers = [
            (ctypes.c_int64 * max(1, len(row)))(*row) if row is not None else None for row in (shape, strides)
        ]
        self.record = kind()
        tensor = self.record.tensor
        tensor.data, tensor.ndim, tensor.device[:] = array.ctypes.data, len(shape), self.device
        tensor.code, tensor.bits, tensor.lanes = CODES.get(array.dtype.kind, 4), 8 * array.itemsize, 1
        tensor.shape, tensor.strides = (
            ctypes.cast(row, ctypes.POINTER(ctypes.c_int64)) if row is not None else None for row in self._numbers
        )
        for field_name, value in self.changes.items():
            setattr(tensor, field_name, value)
        if self.version is not None:
            self.record.version[:], self.record.flags = self.version, self.flags

        def delete(address: int) -> None:
            assert address == ctypes.addressof(self.record)
            self.deleted += 1

        def destroy(capsule: int) -> None:  # as dlpack.h asks of producers: where nobody took the record
            if _is_valid(capsule, name):
                delete(ctypes.addressof(self.record))

        self.record.deleter, self._destroy = DELETER(delete), DESTRUCTOR(destroy)
        return _new(ctypes.addressof(self.record), name, self._destroy)


def read_record(capsule: Any) -> tuple[str, Tensor]:
    """What a capsule of any producer says; its name, and its tensor."""
    for name, kind in ((b"dltensor_versioned", Versioned), (b"dltensor", Managed)):
        try:
            return name.decode(), kind.from_address(_pointer_of(capsule, name)).tensor
        except ValueError:
            continue
    raise AssertionError("no capsule of DLPack")
