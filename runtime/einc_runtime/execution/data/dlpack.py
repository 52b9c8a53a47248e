"""Arrays of other libraries without a copy, and arrays for them, by DLPack: PyTorch, JAX, CuPy and many others.

numpy reads and writes them, except for bf16, which is an integer of 16 bits to it: here the type is corrected in the
record, on its way in or out.

The format is in https://dmlc.github.io/dlpack: a record in C behind a capsule, which belongs to who made it until
somebody takes it and gives the capsule another name. What the record says cannot be checked against its memory: a
capsule is made by code in this process.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array, find_dtype_name, storage_dtype
from einc_runtime.errors import ArrayFault
from einc_runtime.plan.schema import QUANTIZED, Tensor

CPU = (1, 0)
"""The device of the host's memory, as the format has it."""
_HOSTS = {1, 3, 11, 13}
"""Devices whose memory the host reads as its own: its own, pinned memory of CUDA and ROCm, managed memory."""
_DEVICES = {
    2: "a CUDA GPU", 4: "an OpenCL device", 7: "Vulkan", 8: "Metal", 10: "a ROCm GPU", 14: "a oneAPI device"
}  # fmt: skip
_BFLOAT, _UNSIGNED = (4, 16), (1, 16)
_TO_HOST = "copy it to the host's memory first, as tensor.cpu() or cupy.asnumpy(array) do"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes, _get_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def as_array(name: str, value: Any) -> Array:
    """An array of numpy as it is, or the memory of another one (`read_dlpack`). Raises ArrayFault for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return read_dlpack(name, value)
    raise ArrayFault(f"'{name}' is not a numpy array but {type(value).__name__}, and has no __dlpack__")


def read_dlpack(name: str, value: Any) -> Array:
    """The memory of an array of another library, as an array that keeps it and that nobody may write: some libraries
    have arrays that never change, and do not say so. No element is copied, unless it is on a GPU from which its library
    brings it to the host.

    Raises ArrayFault for what cannot be read as an array of numpy; then the memory stays with its owner.
    """
    try:
        source = _ForNumpy(value)
    except Exception as error:  # it has no memory, as tensors of torch on `meta`
        raise ArrayFault(f"'{name}' cannot be had by DLPack: {type(error).__name__}: {str(error)[:200]}") from None
    try:
        array: Array = np.from_dlpack(source)
    except Exception as error:
        message = f"'{name}' cannot be had by DLPack: {type(error).__name__}: {str(error)[:200]}"
    else:
        array = array.view(storage_dtype("bf16")) if source.is_bfloat else array
        array.flags.writeable = False
        return array
    finally:
        source.capsule = None
    if source.device_type not in _HOSTS:
        device = _DEVICES.get(source.device_type, f"device type {source.device_type}")
        raise ArrayFault(f"'{name}' is in the memory of {device}", hint=_TO_HOST)
    raise ArrayFault(message)


class _ForNumpy:
    """What numpy reads: an array of another library, with bf16 as integers of 16 bits."""

    def __init__(self, value: Any) -> None:
        self._value, self.is_bfloat = value, False
        self.capsule: Any = None
        self.device_type = int(getattr(value, "__dlpack_device__", lambda: CPU)()[0])

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **options: Any) -> Any:
        if self.device_type not in _HOSTS:
            options |= {"dl_device": CPU}
        # Kept until numpy has read or refused it: what destroys a capsule may not run while an error is on its way.
        self.capsule = capsule = self._value.__dlpack__(**options)
        tensor = _find_tensor(capsule)
        if tensor is not None:
            self.device_type = tensor.device_type
            if (tensor.code, tensor.bits) == _BFLOAT:
                self.is_bfloat = True
                tensor.code, tensor.bits = _UNSIGNED
        return capsule


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
        tensor = _find_tensor(capsule)
        assert tensor is not None, "numpy makes capsules"
        tensor.code, tensor.bits = _BFLOAT
        return capsule


def as_dlpack(array: Array) -> DlpackArray:
    """The array as an object that other libraries take: `torch.from_dlpack(as_dlpack(session.offload("y")))`."""
    return DlpackArray(array)


def _find_tensor(capsule: Any) -> _DLTensor | None:
    """The description in a capsule that nobody has taken; it stands first in records without a version."""
    if _is_capsule(capsule, b"dltensor_versioned"):
        tensor: _DLTensor = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned")).tensor
        return tensor
    if _is_capsule(capsule, b"dltensor"):
        return _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    return None


_CASTS = {
    "bf16": "float32", "f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64",
}  # fmt: skip
"""What numpy and PyTorch call the type of an array that is given for a tensor."""


def read_given(tensor: Tensor, value: Any) -> Array | str:
    """An array that can be loaded, or what is wrong with it. Float32 is for tensors of bf16, too."""
    if type(value) is np.ndarray and value.dtype == storage_dtype(tensor.dtype) and value.shape == tensor.shape:
        return value
    try:
        array = as_array(tensor.name, value)
    except ArrayFault as fault:
        return fault.message + (f" ({fault.hint})" if fault.hint else "")
    dtype = find_dtype_name(array.dtype.newbyteorder("=")) or str(array.dtype)
    fits = dtype == tensor.dtype or (tensor.dtype == "bf16" and dtype == "f32")
    if fits and array.shape == tensor.shape:
        return array
    expected = f"{tensor.dtype}{list(tensor.shape)}"
    described_dtype = str(array.dtype) if dtype in QUANTIZED and tensor.dtype not in QUANTIZED else dtype
    cast = f" (cast it to {_CASTS[tensor.dtype]})" if array.shape == tensor.shape and tensor.dtype in _CASTS else ""
    return f"expected {expected} for {tensor.kind} '{tensor.name}', found {described_dtype}{list(array.shape)}{cast}"
