"""Runs sources of GPU kernels in numpy, without Triton: as much of its language as our generators use.

Operands lie in one arena. Every access is checked: what is read or written where the mask is on must be an element of
an operand, no element is written twice by one launch, and nothing but outputs is written.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from einc_runtime.dtypes import find_dtype_name, storage_dtype
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.gemm import Gemm
from einc_runtime.kernels.triton.launches import SCRATCH, SIGNATURE_TYPES, StatusPointer, Table, relocate_step
from einc_runtime.kernels.triton.source import TRITON_IMPORTS
from tests.support.emulated_gemm import multiply
from tests.support.function_oracles import LIBRARY
from tests.support.tensor_cores import multiply_tiles

_POINTEES = {"i16": np.int16, **{name: np.int8 for name, kind in SIGNATURE_TYPES.items() if kind == "i8"}}

GAP = 4096
"""Bytes between operands that nobody may touch."""


class Misuse(AssertionError):
    """An access that a kernel must not make."""


class Arena:
    """Memory of a device: `place` copies an array into it, with its elements `step` apart."""

    def __init__(self, size=1 << 24):
        self.raw = np.zeros(size, np.uint8)
        self.readable, self.writable = (np.zeros(size, bool) for _ in range(2))
        self.end = GAP

    def take(self, size):
        start, self.end = self.end, -(-(self.end + size + GAP) // 256) * 256
        assert self.end <= len(self.raw), "a larger arena is needed"
        self.raw[start : self.end] = 0x5A
        return start

    def place(self, array, step=1, output=False):
        array = np.asarray(array)
        strides, run = [], array.itemsize * step
        for extent in reversed(array.shape):
            strides.insert(0, run)
            run *= extent * step
        start = self.take(run)
        offsets = start + sum(
            (np.arange(n) * s).reshape((-1,) + (1,) * (array.ndim - 1 - axis))
            for axis, (n, s) in enumerate(zip(array.shape, strides, strict=True))
        )
        every = (np.ravel(offsets)[:, None] + np.arange(array.itemsize)).ravel()
        self.raw[every] = np.ascontiguousarray(array).view(np.uint8).ravel()
        (self.writable if output else self.readable)[every] = True
        return GpuArray(start, array.shape, tuple(strides), find_dtype_name(array.dtype), 0)

    def fetch(self, array):
        return np.ndarray(array.shape, storage_dtype(array.dtype), self.raw.data, array.pointer, array.strides).copy()

    def hold(self, size, data=None, writable=False):
        start = self.take(size)
        if data is not None:
            self.raw[start : start + size] = data
        self.readable[start : start + size] = True
        self.writable[start : start + size] = writable
        return start


class Type:
    def __init__(self, dtype, pointee=None):
        self.dtype, self.pointee = np.dtype(dtype), pointee


class Tensor:
    """A numpy array with Triton's operators; with a `pointee`, addresses of elements of that type."""

    def __init__(self, array, pointee=None):
        self.a, self.pointee = np.asarray(array), pointee

    @property
    def dtype(self):
        return Type(self.a.dtype)

    def to(self, kind, bitcast=False):
        if kind.pointee is not None:
            return Tensor(self.a, kind.pointee)
        return Tensor(self.a.view(kind.dtype) if bitcast else self.a.astype(kind.dtype))

    def __getitem__(self, key):
        return Tensor(self.a[key], self.pointee)

    @property
    def T(self):
        return Tensor(self.a.T)

    def __index__(self):
        return int(self.a)

    def __bool__(self):
        return bool(self.a)

    def __neg__(self):
        return Tensor(-self.a)

    def __add__(self, other):
        if self.pointee is not None:
            return Tensor(self.a + bare(other).astype(np.int64) * self.pointee.itemsize, self.pointee)
        return self.apply(np.add, other)

    def __floordiv__(self, other):
        """Rounds towards zero, as in C."""
        a, b = self.a, bare(other)
        return Tensor((a - np.fmod(a, b)) // b)

    def apply(self, function, *operands):
        return Tensor(function(self.a, *(weak(x) for x in operands)))


def bare(value):
    return value.a if isinstance(value, Tensor) else np.asarray(value)


def weak(value):
    """Python's numbers take the type of what is beside them."""
    return value.a if isinstance(value, Tensor) else value


def _operator(function, reverse=False):
    def forward(self, operand):
        return self.apply(function, operand)

    def backward(self, operand):
        return Tensor(function(operand, self.a))

    return backward if reverse else forward


for _name, _function in {"sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "mod": np.fmod,
                         "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
                         "rshift": np.right_shift, "lshift": np.left_shift}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operator(_function))
    setattr(Tensor, f"__r{_name}__", _operator(_function, reverse=True))
for _name, _function in {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
                         "eq": np.equal, "ne": np.not_equal}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operator(_function))
Tensor.__radd__ = _operator(np.add)


def language(arena, number, written):
    """`tl` for one program of a launch."""

    def element(pointer, mask, *allowed):
        size = pointer.pointee.itemsize
        on = np.broadcast_to(True if mask is None else bare(mask), pointer.a.shape)
        places = pointer.a[on]
        if len(places) and (places.min() < 0 or places.max() + size > len(arena.raw)):
            raise Misuse("an access outside of memory")
        touched = places[:, None] + np.arange(size)
        if not np.logical_or.reduce([kind[touched] for kind in allowed]).all():
            raise Misuse("an access outside of the operands")
        return on, places, touched

    def load(pointer, mask=None, **options):  # `other`: what is loaded outside of the mask
        on, _, touched = element(pointer, mask, arena.readable, arena.writable)
        loaded = np.full(on.shape, bare(options.get("other", 0)), pointer.pointee)
        loaded[on] = arena.raw[touched].view(pointer.pointee)[:, 0]
        return Tensor(loaded)

    def store(pointer, value, mask=None):
        on, places, touched = element(pointer, mask, arena.writable)
        if written is not None:
            written.append(places)
        values = np.broadcast_to(bare(value), on.shape)[on].astype(pointer.pointee)
        arena.raw[touched] = values[:, None].view(np.uint8)

    def atomic_max(pointer, value, mask=None):
        on, places, _ = element(pointer, mask, arena.writable)
        for address, operand in zip(places, np.broadcast_to(bare(value), on.shape)[on], strict=True):
            cell = arena.raw[address : address + pointer.pointee.itemsize].view(pointer.pointee)
            cell[0] = max(cell[0], operand)

    def dot(a, b, acc=None, input_precision=None, out_dtype=None, max_num_imprecise_acc=None):
        return Tensor(multiply_tiles(a.a, b.a, None if acc is None else acc.a))

    def add_up(x, axis):
        """In an order of its own: threads hold a tile in ways that depend on all that is around."""
        kind = x.a.dtype if x.a.dtype != bool else np.int32
        order = np.random.default_rng([number, *x.a.shape]).permutation(x.a.shape[axis])
        return Tensor(np.add.accumulate(x.a.take(order, axis), axis, kind).take(-1, axis))

    def make_tensor_descriptor(base, shape, strides, block_shape):
        if strides[-1] != 1 or int(base.a) % 16 or any(step * base.pointee.itemsize % 16 for step in strides[:-1]):
            raise Misuse("tiles of a matrix whose lines do not begin at 16 bytes")

        def load_tile(starts):
            places = [int(bare(start)) + np.arange(n) for start, n in zip(starts, block_shape, strict=True)]
            inside = (places[0] < shape[0])[:, None] & (places[1] < shape[1])[None, :]
            offsets = places[0][:, None] * strides[0] + places[1][None, :]
            return load(
                base + Tensor(np.where(inside, offsets, 0)), Tensor(inside), other=Tensor(np.zeros((), base.pointee))
            )

        return SimpleNamespace(load=load_tile)

    def unary(function):
        return lambda x: x.apply(function)

    def reduce_with(function):
        return lambda x, axis: Tensor(function(x.a, axis=axis))

    def fold(x, axis, combine):
        parts = np.moveaxis(x.a, axis, 0)
        result = Tensor(parts[0])
        for part in parts[1:]:
            result = combine(result, Tensor(part))
        return result

    def scan(x, axis, combine):
        parts = [Tensor(part) for part in np.moveaxis(x.a, axis, 0)]
        return Tensor(np.stack([result.a for result in itertools.accumulate(parts, combine)], axis))

    def kinds(function):
        return lambda a, b, propagate_nan=None: Tensor(function(weak(a), weak(b)))

    erf = np.vectorize(math.erf, otypes=[np.float64])
    types = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64,
             "int1": np.bool_, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
             "float8e4nv": ml_dtypes.float8_e4m3fn, "float8e5": ml_dtypes.float8_e5m2}  # fmt: skip
    return SimpleNamespace(
        **{name: Type(kind) for name, kind in types.items()},
        program_id=lambda axis: Tensor(np.int32(number)),
        range=lambda start, stop, step, flatten: (Tensor(np.int32(n)) for n in range(int(start.a), stop, step)),
        arange=lambda start, stop: Tensor(np.arange(start, _power_of_two(stop), dtype=np.int32)),
        full=lambda shape, value, kind: Tensor(np.full(shape, weak(value), kind.dtype)),
        zeros=lambda shape, kind: Tensor(np.zeros(shape, kind.dtype)),
        cast=lambda value, kind: Tensor(bare(value).astype(kind.dtype)),
        reshape=lambda x, shape: Tensor(x.a.reshape(shape)), trans=lambda x: Tensor(x.a.T),
        split=lambda x: (Tensor(x.a[..., 0]), Tensor(x.a[..., 1])),
        broadcast=lambda a, b: tuple(Tensor(x) for x in np.broadcast_arrays(bare(a), bare(b))),
        where=lambda c, a, b: Tensor(np.where(bare(c), weak(a), weak(b)).astype(_common(a, b))),
        multiple_of=lambda value, multiple: value,
        pointer_type=lambda kind: Type(np.int64, kind.dtype),
        make_tensor_descriptor=make_tensor_descriptor,
        load=load, store=store, atomic_max=atomic_max, dot=dot, reduce=fold, associative_scan=scan,
        cumsum=lambda x, axis: Tensor(np.cumsum(x.a, axis, x.a.dtype)),
        max=reduce_with(np.max), min=reduce_with(np.min), sum=add_up,
        exp=unary(np.exp), exp2=unary(np.exp2), log=unary(np.log), log2=unary(np.log2), sqrt=unary(np.sqrt),
        sqrt_rn=unary(np.sqrt), abs=unary(np.abs), floor=unary(np.floor), cos=unary(np.cos), sin=unary(np.sin),
        erf=unary(erf), div_rn=lambda a, b: Tensor(np.divide(weak(a), weak(b))),
        maximum=kinds(np.maximum), minimum=kinds(np.minimum), PropagateNan=SimpleNamespace(ALL=None),
    )  # fmt: skip


def _call_library(function, *arguments):
    return Tensor(function(*(x.a for x in arguments)))


def _power_of_two(stop):
    if stop & (stop - 1):
        raise Misuse(f"tl.arange of {stop}, which is no power of two")
    return stop


def _common(a, b):
    """The type of both branches; Python's numbers have none."""
    kinds = [x.a.dtype for x in (a, b) if isinstance(x, Tensor)]
    if not kinds:
        return np.float32 if isinstance(a, float) or isinstance(b, float) else np.int32
    return np.result_type(*kinds)


def run(sequence, arena):
    """All launches of a sequence in order; each writes every output element at most once. Gives the status word."""
    workspace = arena.hold(sequence.scratch, writable=True) if sequence.scratch else 0
    status = arena.hold(4, np.zeros(4, np.uint8), writable=True)

    def locate(address):
        """The address in the memory of this process."""
        return arena.raw.ctypes.data + (workspace + address - SCRATCH if address >= SCRATCH else address)

    library = SimpleNamespace(**{name: partial(_call_library, f) for name, f in LIBRARY.items()})
    for launch in sequence.steps:
        if isinstance(launch, Gemm):
            multiply(relocate_step(launch, locate))
            continue
        pointers = []
        for argument, kind in zip(launch.arguments, launch.source.types, strict=True):
            if isinstance(argument, Table):
                argument = arena.hold(len(argument.data), np.frombuffer(argument.data, np.uint8))
            elif isinstance(argument, StatusPointer):
                argument = status
            elif argument >= SCRATCH:
                argument = workspace + argument - SCRATCH
            pointee = _POINTEES.get(kind)
            pointers.append(Tensor(np.int64(argument), np.dtype(pointee) if pointee else storage_dtype(kind)))
        written = []
        lines = launch.source.text.replace(TRITON_IMPORTS, "").splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith("from triton."))
        code = compile(text, launch.source.name, "exec")
        for number in range(launch.grid):
            names = {
                "triton": SimpleNamespace(jit=lambda f: f),
                "tl": language(arena, number, written),
                "libdevice": library,
            }
            exec(code, names)
            with np.errstate(all="ignore"):
                names[launch.source.name](*pointers)
        places = np.concatenate([*written, np.zeros(0, np.int64)])
        places = places[places != status]
        if len(np.unique(places)) < len(places):
            raise Misuse(f"{launch.source.name} writes an element twice")
    return int(arena.raw[status : status + 4].view(np.int32)[0])


def lines_of(source):
    """The lines of a kernel's function, without the module around it."""
    text = source.text.split(f"def {source.name}(")[1]
    return [line.strip() for line in itertools.islice(text.split("\n"), 1, None) if line.strip()]
