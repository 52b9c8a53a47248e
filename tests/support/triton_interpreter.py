"""Runs launches of GPU kernels on numpy memory in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import linecache
import os
from functools import partial

import ml_dtypes
import numpy as np

from einc_runtime.dtypes import find_dtype_name
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, SIGNATURE_TYPES, StatusPointer, Table
from tests.support.emulated_gemm import multiply
from tests.support.function_oracles import LIBRARY
from tests.support.tensor_cores import multiply_tiles

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported


def device(array):
    """A numpy array as the GPU's kernels see memory."""
    return GpuArray(array.ctypes.data, array.shape, array.strides, find_dtype_name(array.dtype), 0)


class Pointer:
    """As little of a torch tensor as the interpreter asks for, over an address."""

    def __init__(self, address, kind):
        self.address, self.dtype = address, kind

    def data_ptr(self):
        return self.address

    def storage_offset(self):
        return 0

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return Pointer(self.address, self.dtype)

    def size(self):
        return ()

    def stride(self):
        return ()

    def set_(self, *_):
        pass

    def copy_(self, _):
        pass


def load(source):
    """The function of a source; its lines are stored where tracebacks and Triton find them."""
    file = f"<{source.name}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(True), file)
    names = {"__name__": source.name}
    exec(compile(source.text, file, "exec"), names)
    return names[source.name]


def repair():
    """Corrects the interpreter, which keeps bf16 as bits and would multiply matrices of bits, by a library whose order
    of sums depends on the tile. It gets the functions of libdevice, too."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder

    def create_dot(self, a, b, total, *options):
        tiles = [x.data.view(ml_dtypes.bfloat16) if x.dtype.scalar.is_bf16() else x.data for x in (a, b)]
        if a.dtype.scalar.is_fp8e4nv():
            tiles = [tile.view(ml_dtypes.float8_e4m3fn).astype(np.float32) for tile in tiles]
        return interpreter.TensorHandle(multiply_tiles(*tiles, total.data), total.dtype.scalar)

    builder.create_dot = create_dot
    if not hasattr(builder, "own_load"):  # which refuses masks that are single values widened to a tile
        builder.own_load, builder.own_store = builder.create_masked_load, builder.create_masked_store
    builder.create_masked_load = lambda self, at, mask, *options, **named: self.own_load(
        at, _as_mask(mask), *options, **named
    )
    builder.create_masked_store = lambda self, at, value, mask, *options: self.own_store(
        at, value, _as_mask(mask), *options
    )

    if not hasattr(builder, "own_splat"):  # which widens comparisons of single floats to a tile of floats
        builder.own_splat = builder.create_splat
    builder.create_splat = lambda self, result, single: (
        interpreter.TensorHandle(np.full(result.shape, single.data, np.bool_), single.dtype.scalar)
        if single.data.dtype == np.bool_
        else self.own_splat(result, single)
    )

    from triton.language.extra import libdevice

    for name, function in LIBRARY.items():
        setattr(libdevice, name, partial(_call_numpy, function))


def _call_numpy(function, *arguments):
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    result = function(*(x.handle.data for x in arguments))
    widest = max(arguments, key=lambda x: x.handle.data.size)
    return tl.core.tensor(TensorHandle(result, widest.handle.dtype), widest.type)


def _as_mask(mask):
    from triton.language import int1
    from triton.runtime.interpreter import TensorHandle

    return mask if mask.data.dtype == np.bool_ else TensorHandle(mask.data.astype(np.bool_), int1)


def list_types():
    """Triton's types of what pointers of the plan's types point to."""
    import triton.language as tl

    known = {"fp16": tl.float16, "bf16": tl.bfloat16, "fp32": tl.float32, "fp64": tl.float64, "i32": tl.int32,
             "i64": tl.int64, "i16": tl.int16, "i8": tl.int8}  # fmt: skip
    return {name: known[kind] for name, kind in SIGNATURE_TYPES.items()}


def run(calls, scratch=0, status=None):
    """Runs all launches in order, with a workspace of `scratch` bytes that is full of garbage, and guards behind it."""

    kinds = list_types()
    repair()
    memory = np.full(scratch + 256, 0xFF, np.uint8)
    word = np.zeros(1, np.int32) if status is None else status
    tables = []
    for call in calls:
        if isinstance(call, Gemm):
            multiply(call, memory.ctypes.data)
            continue
        arguments = []
        for argument, kind in zip(call.arguments, call.source.types, strict=True):
            if isinstance(argument, Table):
                tables.append(np.frombuffer(argument.data, np.uint8).copy())
                address = tables[-1].ctypes.data
            elif isinstance(argument, StatusPointer):
                address = word.ctypes.data
            else:
                address = memory.ctypes.data + argument - SCRATCH if argument >= SCRATCH else argument
            arguments.append(Pointer(address, kinds[kind]))
        load(call.source)[(call.grid,)](*arguments)
    assert (memory[scratch:] == 0xFF).all()
