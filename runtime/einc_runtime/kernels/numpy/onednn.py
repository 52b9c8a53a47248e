"""Matrix products by oneDNN (the wheel `onednn-cpu-gomp`), through its C interface.

oneDNN compiles a product for its shapes, types and strides, and can take the right operand in a layout of its own.
That layout makes products with few rows up to three times as fast, and it is the same for any number of rows. Products
of 16-bit floats use the processor's instructions for them, and are refused here where it has none: sums are then made
in f32 and rounded once.

oneDNN has threads of its own (OpenMP). It uses the calling thread alone wherever `limit_threads(1)` was called in that
thread, and nothing of OpenMP is started then.
"""

from __future__ import annotations

import ctypes
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from einc_runtime.dtypes import Array, find_dtype_name
from einc_runtime.kernels.base import ALIGNMENT, address, allocate_aligned
from einc_runtime.kernels.numpy.products import DenseProduct, MatrixProduct
from einc_runtime.kernels.processor import find_level
from einc_runtime.resident import release_program
from einc_runtime.text import escape_text

ONEDNN = "onednn"
FILE = "libdnnl.so.3"
_ONEDNN_TYPES = {"f16": 1, "bf16": 2, "f32": 3}
_ANY_LAYOUT, _USER_SCRATCHPAD, _CPU, _IN_ORDER = 1, 1, 1, 1
OF_WEIGHTS, OF_SCRATCHPAD, _IMPLEMENTATION = 131, 136, 8  # what a descriptor is asked for
SOURCE, TARGET, WEIGHTS, SCRATCHPAD = 1, 17, 33, 80  # what an argument is

MAX_PRIMITIVES = 256
"""Compiled products that are kept. Layers of a model have the same ones, and oneDNN itself keeps 1024."""

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Extents, and strides in elements."""


class OnednnError(RuntimeError):
    """A call of oneDNN failed, or it has no fast implementation for what it was asked."""


class OnednnObject:
    """Something that oneDNN made, which is destroyed with this."""

    __slots__ = ("_destroy", "value")

    def __init__(self, value: int, destroy: Any) -> None:
        self.value, self._destroy = value, destroy

    def __del__(self) -> None:
        self._destroy(self.value)


def _pass(argument: Any) -> Any:
    return ctypes.c_void_p(argument.value) if isinstance(argument, OnednnObject) else argument


class _Argument(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("memory", ctypes.c_void_p))


class _Library:
    """The functions of the library, and its engine for the CPU."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        level = find_level()
        if level is not None:
            self._library.dnnl_set_max_cpu_isa(level.onednn)
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self._query = self._library.dnnl_primitive_desc_query_md
        self._query.restype, self._query.argtypes = pointer, [pointer, integer, integer]
        self.size_of = self._library.dnnl_memory_desc_get_size
        self.size_of.restype, self.size_of.argtypes = ctypes.c_size_t, [pointer]
        self.are_equal = self._library.dnnl_memory_desc_equal
        self.are_equal.argtypes = [pointer, pointer]
        self.execute = self._library.dnnl_primitive_execute
        self.execute.argtypes = [pointer, pointer, integer, pointer]
        self.get_threads, self.set_threads = self._library.omp_get_max_threads, self._library.omp_set_num_threads
        self._engine = self.make("engine", _CPU, ctypes.c_size_t(0))

    @property
    def engine(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._engine.value)

    def make(self, kind: str, *arguments: Any, suffix: str = "") -> OnednnObject:
        """Calls dnnl_{kind}_create{suffix}. Raises OnednnError, and MemoryError where there is too little."""
        handle = ctypes.c_void_p()
        create = getattr(self._library, f"dnnl_{kind}_create{suffix}")
        status = create(ctypes.byref(handle), *map(_pass, arguments))
        if status == 1:
            raise MemoryError(f"oneDNN has no memory for a {kind}")
        if status or handle.value is None:
            raise OnednnError(f"oneDNN makes no {kind} (status {status})")
        ended_as = "primitive_desc" if kind.endswith("primitive_desc") else kind
        destroy = getattr(self._library, f"dnnl_{ended_as}_destroy")
        destroy.argtypes = [ctypes.c_void_p]
        return OnednnObject(handle.value, destroy)

    def describe(self, dtype: str, layout: Layout) -> OnednnObject:
        extents, strides = ((ctypes.c_int64 * len(part))(*part) for part in layout)
        return self.make("memory_desc", len(extents), extents, _ONEDNN_TYPES[dtype], strides, suffix="_with_strides")

    def describe_any(self, dtype: str, extents: tuple[int, ...]) -> OnednnObject:
        """The descriptor of an array in the layout that a product likes best."""
        held = (ctypes.c_int64 * len(extents))(*extents)
        return self.make("memory_desc", len(extents), held, _ONEDNN_TYPES[dtype], _ANY_LAYOUT, suffix="_with_tag")

    def query(self, primitive: OnednnObject, property_number: int) -> int:
        """A descriptor that belongs to that of a primitive, and lives as long."""
        return int(self._query(ctypes.c_void_p(primitive.value), property_number, 0) or 0)

    def name_implementation(self, primitive: OnednnObject) -> str:
        text = ctypes.c_char_p()
        self._library.dnnl_primitive_desc_query(
            ctypes.c_void_p(primitive.value), _IMPLEMENTATION, 0, ctypes.byref(text)
        )
        return (text.value or b"").decode(errors="replace")

    def make_attributes(self, operations: OnednnObject | None = None) -> OnednnObject:
        """Scratch memory comes from the caller; `operations` are done to each element before it is stored."""
        attributes = self.make("primitive_attr")
        self.call("primitive_attr_set_scratchpad_mode", attributes, _USER_SCRATCHPAD)
        if operations is not None:
            self.call("primitive_attr_set_post_ops", attributes, operations)
        return attributes

    def call(self, function: str, changed: OnednnObject, *arguments: Any) -> None:
        """Calls dnnl_{function} with an object that it changes. Raises OnednnError."""
        if getattr(self._library, f"dnnl_{function}")(_pass(changed), *map(_pass, arguments)):
            raise OnednnError(f"oneDNN refuses {function}")


def find_files() -> list[Path]:
    """The library as wheels bring it, which put it beside the environment's own, or beside the user's."""
    bases = dict.fromkeys([sys.prefix, site.getuserbase() if site.ENABLE_USER_SITE else sys.prefix])
    return [path for base in bases for path in sorted(Path(base, "lib").glob(FILE))]


@cache
def _open() -> tuple[_Library | None, str | None]:
    """The library, or why none of those that are installed can be used."""
    problem: str | None = None
    for path in find_files():
        try:
            return _Library(path), None
        except (OSError, AttributeError, OnednnError) as error:
            problem = problem or str(error)
    return None, problem


def _load() -> _Library | None:
    return _open()[0]


def was_needed() -> bool:
    """Whether the library has been loaded, or was looked for in vain."""
    return bool(_open.cache_info().currsize)


def describe_problem() -> str | None:
    """A note for the user if oneDNN is installed, was needed, and cannot be used."""
    problem = _open()[1] if was_needed() else None
    if problem is None:
        return None
    return f"products may be slow: oneDNN is installed, but cannot be loaded ({escape_text(problem, 200)})"


def is_available() -> bool:
    """Whether the library can be used. It is loaded, which takes some milliseconds."""
    return _load() is not None


def rest() -> None:
    """Says that no product will be compiled for a while. What that needs of the library's program, some 10 MiB, is
    given back to the system."""
    if was_needed() and is_available():
        release_program(FILE)


def limit_threads(count: int) -> int:
    """Lets oneDNN use so many threads where the calling thread uses it, and returns how many it could use before.
    Does nothing while it is not loaded."""
    library = _load() if was_needed() else None
    if library is None:
        return count
    before: int = library.get_threads()
    library.set_threads(count)
    return before


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets oneDNN use the calling thread alone; what is made in here expects to run so."""
    before = limit_threads(1)
    try:
        yield
    finally:
        limit_threads(before)


@dataclass(frozen=True, slots=True)
class _Shape:
    """All that decides how a product is computed, but for where its operands lie. `right` has no strides if packed."""

    dtype: str
    left: Layout
    right: Layout
    target: Layout
    packed: bool


class _Primitive:
    """A product that oneDNN has compiled."""

    __slots__ = ("_descriptors", "_primitive", "form", "packed_size", "scratch", "shape")

    def __init__(self, shape: _Shape) -> None:
        library = require_library()
        left, target = (library.describe(shape.dtype, layout) for layout in (shape.left, shape.target))
        right = (
            library.describe_any(shape.dtype, shape.right[0])
            if shape.packed
            else library.describe(shape.dtype, shape.right)
        )
        attributes = library.make_attributes()
        operands = left, right, None, target
        descriptor = library.make("matmul_primitive_desc", library.engine, *operands, attributes)
        if library.name_implementation(descriptor).startswith("ref"):
            raise OnednnError("oneDNN computes this element by element")
        self.shape, self._descriptors = shape, (left, right, target, descriptor)
        self._primitive = library.make("primitive", descriptor)
        self.scratch: int = library.size_of(library.query(descriptor, OF_SCRATCHPAD) or None)
        self.packed_size: int = library.size_of(self.right)
        self.form = number_form(self.right, descriptor) if shape.packed else 0

    @property
    def right(self) -> int:
        """The descriptor of the right operand, as the primitive takes it."""
        return require_library().query(self._descriptors[3], OF_WEIGHTS)

    def bind(self, left: Array, right: Array, target: Array, scratch: Array) -> OnednnCall:
        """The product of these operands."""
        library, descriptors = require_library(), self._descriptors
        pad = library.query(descriptors[3], OF_SCRATCHPAD)
        places = [
            (SOURCE, descriptors[0].value, address(left)),
            (WEIGHTS, self.right, address(right)),
            (TARGET, descriptors[2].value, address(target)),
            *([(SCRATCHPAD, pad, address(scratch))] if self.scratch else []),
        ]
        return OnednnCall(self._primitive, hold_memory(places), (self, left, right, target, scratch))


class OnednnCall:
    """A call of oneDNN, with all that it needs; it may be called in one thread at a time."""

    __slots__ = ("_arguments", "_count", "_execute", "_kept", "_primitive", "_stream")

    def __init__(
        self, primitive: OnednnObject, places: list[tuple[int, OnednnObject]], kept: tuple[object, ...]
    ) -> None:
        library = require_library()
        stream = library.make("stream", library.engine, _IN_ORDER)
        held = (_Argument * len(places))(*[_Argument(kind, memory.value) for kind, memory in places])
        self._execute, self._primitive, self._stream = library.execute, primitive.value, stream.value
        self._count, self._arguments = len(places), ctypes.addressof(held)
        self._kept = (primitive, stream, held, places, kept)

    def __call__(self) -> None:
        if self._execute(self._primitive, self._stream, self._count, self._arguments):
            self.fail()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The address of the function that is called, and its arguments."""
        function = ctypes.cast(self._execute, ctypes.c_void_p).value or 0
        return function, self._primitive, self._stream, self._count, self._arguments

    def fail(self) -> None:
        raise OnednnError("oneDNN failed")


def hold_memory(places: list[tuple[int, int, int]]) -> list[tuple[int, OnednnObject]]:
    """Memory objects for (kind, descriptor, address)."""
    library = require_library()
    return [
        (kind, library.make("memory", ctypes.c_void_p(descriptor), library.engine, ctypes.c_void_p(start)))
        for kind, descriptor, start in places
    ]


@dataclass(frozen=True, slots=True)
class OnednnProduct:
    """A product whose right operand may be packed: `form` numbers its layout, which takes `packed_size` bytes.

    It needs `scratch` bytes of memory.
    """

    product: MatrixProduct
    primitive: _Primitive

    @staticmethod
    def of(product: DenseProduct, *, packed_side: int | None = None) -> OnednnProduct | None:
        """None where the library is missing or has no fast way. `packed_side` says which operand is packed, if any."""
        matrices, kind = MatrixProduct.of(product), find_dtype_name(product.target.dtype)
        if matrices is None or kind not in _ONEDNN_TYPES or _load() is None:
            return None
        packed = packed_side is not None
        if packed and (product.target.ndim != 2 or packed_side == matrices.turned):
            return None  # only the right operand can be packed
        stack = product.target.shape[:-2]
        try:
            left, right, target = (
                _find_layout(array, stack) for array in (matrices.left, matrices.right, matrices.target)
            )
            return OnednnProduct(matrices, _share(_Shape(kind, left, right, target, packed)))
        except (OnednnError, ValueError):
            return None

    @property
    def form(self) -> int:
        return self.primitive.form

    @property
    def packed_size(self) -> int:
        return self.primitive.packed_size

    @property
    def scratch(self) -> int:
        """Bytes; at least some, so that there is an address."""
        return max(ALIGNMENT, self.primitive.scratch)

    def pack(self, matrix: Array) -> Array:
        """The operand in the layout that the product takes."""
        library, matrix = require_library(), matrix.T if self.product.turned else matrix
        packed = allocate_aligned(self.packed_size)
        with one_thread():
            plain = library.describe(self.primitive.shape.dtype, _find_layout(matrix, ()))
            plain_layout, packed_layout = ctypes.c_void_p(plain.value), ctypes.c_void_p(self.primitive.right)
            descriptor = library.make(
                "reorder_primitive_desc", plain_layout, library.engine, packed_layout, library.engine, None
            )
            primitive = library.make("primitive", descriptor)
            places = [(SOURCE, plain.value, address(matrix)), (TARGET, self.primitive.right, address(packed))]
            OnednnCall(primitive, hold_memory(places), ())()
        return packed

    def bind(self, scratch: Array, packed: Array | None = None) -> OnednnCall:
        """The product as a call. `scratch` has as many bytes as it needs."""
        matrices = self.product
        right = matrices.right if packed is None else packed
        return self.primitive.bind(matrices.left, right, matrices.target, scratch)


_forms: list[tuple[int, OnednnObject]] = []
"""Layouts of packed operands that have been seen, with the descriptors that keep them alive. There are few."""


@lru_cache(MAX_PRIMITIVES)
def _share(shape: _Shape) -> _Primitive:
    """The only primitive of a shape; oneDNN takes up to a millisecond to make one."""
    with one_thread():
        return _Primitive(shape)


def number_form(descriptor: int, owner: OnednnObject) -> int:
    library = require_library()
    for number, (known, _) in enumerate(_forms):
        if library.are_equal(known, descriptor):
            return number
    _forms.append((descriptor, owner))
    return len(_forms) - 1


def require_library() -> _Library:
    library = _load()
    if library is None:
        raise OnednnError("oneDNN is not installed")
    return library


def _find_layout(array: Array, stack: tuple[int, ...]) -> Layout:
    """Extents and strides for oneDNN, which broadcasts extents of 1. Raises ValueError for strides between elements."""
    missing = len(stack) + 2 - array.ndim
    extents, strides = [1] * missing + list(array.shape), [0] * missing + list(array.strides)
    for axis in range(len(stack) - 1, -1, -1):
        if strides[axis] == 0 or extents[axis] == 1:
            extents[axis], strides[axis] = 1, extents[axis + 1] * strides[axis + 1]
    if any(step % array.itemsize or step <= 0 for step in strides):
        raise ValueError("strides between elements")
    return tuple(extents), tuple(step // array.itemsize for step in strides)
