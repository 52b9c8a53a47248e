"""Arrays of other libraries without a copy, and arrays for them, by DLPack: PyTorch, JAX, CuPy and many others.

numpy has a reader and a writer of its own, which know neither bf16 nor, in numpy 1, versions of the format. So memory
is read here. `as_dlpack` lets numpy write, and corrects the type of bf16.

The format is in https://dmlc.github.io/dlpack: a record in C behind a capsule, which belongs to who made it until
somebody takes it and gives the capsule another name. Who took it calls the record's deleter once. What the record says
is checked. That its memory is there cannot be checked: a capsule is made by code in this process.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, DType, storage_dtype
from einc_runtime.errors import ArrayFault

CPU = (1, 0)
"""The device of the host's memory, as the format has it."""
_HOSTS = {1, 3, 11, 13}
"""Devices whose memory the host reads as its own: its own, pinned memory of CUDA and ROCm, managed memory."""
_DEVICES = {
    2: "a CUDA GPU", 4: "an OpenCL device", 7: "Vulkan", 8: "Metal", 10: "a ROCm GPU", 14: "a oneAPI device"
}  # fmt: skip
_CODES = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex", 6: "bool"}
_DLPACK_TYPES = {
    **{(code, bits): f"{kind}{bits}" for code, kind in ((0, "int"), (1, "uint")) for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (6, 8): "bool",
}  # fmt: skip
_BFLOAT = (4, 16)
_DLPACK_VERSION = (1, 1)
MAX_DIMENSIONS = 32
READ_ONLY = True
"""Nobody may write an array that is read, as some libraries have arrays that never change and do not say so."""

_MAX_ARRAY_BYTES = sys.maxsize


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_RECORDS: tuple[tuple[bytes, bytes, type[_Managed | _Versioned]], ...] = (
    (b"dltensor_versioned", b"used_dltensor_versioned", _Versioned),
    (b"dltensor", b"used_dltensor", _Managed),
)
"""The names of capsules, those of capsules whose record was taken, and the records. The names stay in memory for ever,
as capsules point to them."""

_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes, _set_name.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int


def as_array(name: str, value: Any) -> Array:
    """An array of numpy as it is, or the memory of another one (`read_dlpack`). Raises ArrayFault for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return read_dlpack(name, value)
    raise ArrayFault(f"'{name}' is not a numpy array but {type(value).__name__}, and has no __dlpack__")


def read_dlpack(name: str, value: Any) -> Array:
    """The memory of an array of another library, as an array that keeps it: no element is copied, unless it is on a GPU
    from which its library brings it to the host.

    Raises ArrayFault for what cannot be read as an array of numpy; then the memory stays with its owner.
    """
    capsule = _ask_for_capsule(name, value)
    named_record = _find_record(capsule)
    if named_record is None:
        raise ArrayFault(f"'{name}' gives no capsule of DLPack that is unused, but {type(capsule).__name__}")
    record, used = named_record
    if isinstance(record, _Versioned) and record.major != _DLPACK_VERSION[0]:
        raise ArrayFault(f"'{name}' is in version {record.major} of DLPack, and version {_DLPACK_VERSION[0]} is known")
    try:
        dtype, shape, strides, start = _check(record.tensor)
    except _UnfitRecord as error:
        raise ArrayFault(f"'{name}' {error}", hint=error.hint) from None
    if _set_name(capsule, used):
        raise ArrayFault(f"'{name}' gives a capsule that cannot be taken")
    owner = _Owner(record)
    if 0 in shape:
        return np.empty(shape, dtype)
    stored = np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype
    owner.__array_interface__ = {
        "version": 3, "data": (start, READ_ONLY), "typestr": stored.str, "shape": shape, "strides": strides
    }  # fmt: skip
    return np.asarray(owner).view(dtype)


class DlpackArray:
    """An array of numpy, to be given to `torch.from_dlpack` and the like: they get its memory, and no copy."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule with the memory of the array, as `numpy.ndarray.__dlpack__` makes it; bf16 is bf16 there, too."""
        if self.array.dtype.name != "bfloat16":
            return self.array.__dlpack__(**options)
        capsule = self.array.view(np.uint16).__dlpack__(**options)
        named_record = _find_record(capsule)
        assert named_record is not None, "numpy makes capsules"
        named_record[0].tensor.code, named_record[0].tensor.bits = _BFLOAT
        return capsule


def as_dlpack(array: Array) -> DlpackArray:
    """The array as an object that other libraries take: `torch.from_dlpack(as_dlpack(session.offload("y")))`."""
    return DlpackArray(array)


class _Owner:
    """What has taken a record. When no array needs it any more, the record is deleted."""

    __array_interface__: dict[str, Any]

    def __init__(self, record: _Managed | _Versioned) -> None:
        if record.deleter:
            delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(record.deleter)
            weakref.finalize(self, delete, ctypes.addressof(record)).atexit = False


class _UnfitRecord(Exception):
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _find_record(capsule: Any) -> tuple[_Managed | _Versioned, bytes] | None:
    """The record behind a capsule that nobody has taken, and the name that taking it gives to the capsule."""
    for capsule_name, used, kind in _RECORDS:
        if _is_capsule(capsule, capsule_name):
            return kind.from_address(_get_pointer(capsule, capsule_name)), used
    return None


def _ask_for_capsule(name: str, value: Any) -> Any:
    options: dict[str, Any] = {"max_version": _DLPACK_VERSION}
    try:
        where = getattr(value, "__dlpack_device__", lambda: CPU)()
        on_host = int(where[0]) in _HOSTS
        if not on_host:
            options |= {"dl_device": CPU}
        try:
            return value.__dlpack__(**options)
        except TypeError:  # a library that knows no versions yet
            if on_host:
                return value.__dlpack__()
    except Exception as error:
        raise ArrayFault(f"'{name}' cannot be had by DLPack: {type(error).__name__}: {str(error)[:200]}") from error
    raise ArrayFault(f"'{name}' is {_name_device(int(where[0]))}", hint=_TO_HOST)


_TO_HOST = "copy it to the host's memory first, as tensor.cpu() or cupy.asnumpy(array) do"


def _name_device(number: int) -> str:
    return f"in the memory of {_DEVICES.get(number, f'device type {number}')}"


def _check(tensor: _DLTensor) -> tuple[DType, tuple[int, ...], tuple[int, ...], int]:
    """The element type, the shape, the strides in bytes, and the address of the first element."""
    if tensor.device_type not in _HOSTS:
        raise _UnfitRecord(f"is {_name_device(tensor.device_type)}", _TO_HOST)
    dtype = _find_dtype(tensor)
    if not 0 <= tensor.ndim <= MAX_DIMENSIONS:
        raise _UnfitRecord(f"has {tensor.ndim} dimensions, and {MAX_DIMENSIONS} are possible")
    if tensor.ndim and not tensor.shape:
        raise _UnfitRecord("has no shape")
    shape = _read_numbers(tensor.shape, tensor.ndim)
    if min(shape, default=0) < 0:
        raise _UnfitRecord(f"has a negative extent: {list(shape)}")
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if 0 in shape:
        return dtype, shape, (), 0
    if size > _MAX_ARRAY_BYTES:
        raise _UnfitRecord(f"has a shape of too many bytes: {list(shape)}")
    strides = _find_strides(tensor, shape, dtype.itemsize)
    start = (tensor.data or 0) + tensor.byte_offset
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    first, last = start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps)
    if not tensor.data or first < 0 or last + dtype.itemsize > _MAX_ARRAY_BYTES:
        raise _UnfitRecord("has elements at addresses that there are not")
    return dtype, shape, strides, start


def _find_dtype(tensor: _DLTensor) -> DType:
    if tensor.lanes != 1:
        raise _UnfitRecord(f"has elements of {tensor.lanes} lanes, and one is possible")
    key = tensor.code, tensor.bits
    if key == _BFLOAT:
        return storage_dtype("bf16")
    if key not in _DLPACK_TYPES:
        kind = f"{_CODES[tensor.code]}{tensor.bits}" if tensor.code in _CODES else f"type {tensor.code}"
        raise _UnfitRecord(f"has elements of {kind}, with {tensor.bits} bits each, which are not known here")
    return np.dtype(_DLPACK_TYPES[key])


def _find_strides(tensor: _DLTensor, shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """In bytes. Without any, elements are dense, the last dimension the fastest."""
    if tensor.strides:
        strides = tuple(stride * itemsize for stride in _read_numbers(tensor.strides, tensor.ndim))
        # Where nobody steps, any number may stand.
        return tuple(stride if extent > 1 else itemsize for extent, stride in zip(shape, strides, strict=True))
    dense = [itemsize]
    for extent in reversed(shape[1:]):
        dense.append(dense[-1] * extent)
    return tuple(reversed(dense[: tensor.ndim]))


def _read_numbers(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()
