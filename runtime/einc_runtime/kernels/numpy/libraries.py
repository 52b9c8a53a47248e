"""Which library multiplies matrices: whatever is fastest on this processor, and not what happens to be installed.

No library is the fastest one everywhere. MKL takes slow paths on processors of other vendors, OpenBLAS packs its
operands in every call, and oneDNN is not there for every platform. So those that are installed are measured once, which
takes some hundredths of a second, on products of one size with few rows and with many, whose right operand is constant
or not. The times are kept in the user's cache folder for this processor and these libraries (`library_times.py`).

Times decide with a preference: a library that is slower by less than MARGIN counts as equally fast, and of equally fast
ones the first in PREFERENCE is taken. So noise hardly changes a choice, on which the last bits of results depend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from einc_runtime.dtypes import find_dtype_name, storage_dtype
from einc_runtime.kernels.base import Run
from einc_runtime.kernels.numpy import blas, library_times, onednn, prepacking, products
from einc_runtime.kernels.numpy.blas import MKL, OPENBLAS, DenseProduct
from einc_runtime.kernels.numpy.onednn import ONEDNN
from einc_runtime.kernels.numpy.pieces import make_runner
from einc_runtime.kernels.processor import name_processor

PREFERENCE = (ONEDNN, OPENBLAS, MKL)
MARGIN = 1.05
"""A library comes before those that PREFERENCE names first where it is faster by so much: less is noise."""

FEW_ROWS = 32
"""Products with at most so many rows are packed far more often than they are multiplied, where a library packs."""
NARROW_TYPES = ("bf16", "f16")
"""Types that some processors multiply. Elsewhere their products are computed in f32."""

Times = Mapping[str, Mapping[str, float]]
"""Kind of product -> library -> microseconds."""

_SAMPLE_ROWS = {"few rows": 8, "many rows": 128}
_EXTENT, _ROUNDS = 384, 5
_CONSTANT, _VARIABLE = "constant", "variable"


@dataclass(frozen=True, slots=True)
class LibraryChoice:
    """The library whose packed form of a constant operand is used, and the one that multiplies without."""

    packed: str
    plain: str


def choose_library(product: DenseProduct, side: int | None) -> LibraryChoice:
    """The libraries for a product whose operand on `side` (left is 0, right is 1) is constant; None: neither is."""
    kind = find_dtype_name(product.target.dtype)
    if kind in NARROW_TYPES:
        return LibraryChoice(ONEDNN, ONEDNN)
    if kind not in ("f32", "f64") or product.multiplications < prepacking.MIN_PACKED_PRODUCTS:
        return LibraryChoice(OPENBLAS, OPENBLAS)
    rows, columns = product.target.shape[-2:]
    extent = min(rows, columns) if side is None else columns if side == 0 else rows
    plain = _choose("f32", extent, _VARIABLE)
    if kind == "f64":
        plain = plain if plain != ONEDNN else OPENBLAS
        return LibraryChoice(plain, plain)
    if extent == 1:  # a product with a vector reads its matrix once, and packing does not help
        plain = plain if plain != ONEDNN else OPENBLAS
        return LibraryChoice(plain, plain)
    return LibraryChoice(_choose("f32", extent, _CONSTANT), plain)


def is_multiplied(kind: str) -> bool:
    """Whether products of this 16-bit type are computed by instructions for it, which are faster than those for f32."""
    if kind not in NARROW_TYPES or not onednn.is_available():
        return False
    name = _name_kind(kind, "many rows", _CONSTANT)
    narrow = _times().get(name, {}).get(ONEDNN)
    return narrow is not None and narrow < min(_times()[_name_kind("f32", "many rows", _CONSTANT)].values())


def packs_few_rows(kind: str) -> bool:
    """Whether a library multiplies few rows by constant operands of this type in a packed form."""
    if kind in NARROW_TYPES:
        return is_multiplied(kind)
    return kind == "f32" and _choose(kind, FEW_ROWS, _CONSTANT) == ONEDNN


def decide() -> Times:
    """The times that decide, which are measured now if they have to be; none where there is nothing to decide."""
    return _times() if len(_installed()) > 1 else {}


def adopt_times(times: Times) -> None:
    """Decides as another process does, whose `decide` returned these times, if the same libraries are here.

    On one machine, processes remember the same times, so that there is nothing to do.
    """
    if times and len(_installed()) > 1 and _is_complete(times) and times != _times():
        _times_of_first_rank.clear()
        _times_of_first_rank.update(times)
        _times.cache_clear()


def describe() -> dict[str, Any] | None:
    """The times that decide and what they decide, for a user; None while nothing had to be decided."""
    if not _times.cache_info().currsize or len(_installed()) == 1:
        return None
    chosen = {name: {"library": _pick(times), "us": dict(times)} for name, times in sorted(_times().items())}
    return {"processor": name_processor(), "products": chosen}


def _choose(kind: str, extent: int, operand: str) -> str:
    if len(_installed()) == 1:
        return OPENBLAS
    rows = "few rows" if extent <= FEW_ROWS else "many rows"
    return _pick(_times()[_name_kind(kind, rows, operand)])


def _pick(times: Mapping[str, float]) -> str:
    least = min(times.values())
    return next(library for library in PREFERENCE if times.get(library, np.inf) <= MARGIN * least)


def _name_kind(kind: str, rows: str, operand: str) -> str:
    return f"{kind}, {rows}, {operand} right operand"


@cache
def _installed() -> tuple[str, ...]:
    """The libraries whose files are there; numpy's own always is."""
    files = {ONEDNN: onednn.FILE, MKL: blas.MKL_FILE}
    return (OPENBLAS, *(name for name, file in files.items() if blas.find_library_files(file)))


_times_of_first_rank: dict[str, Mapping[str, float]] = {}
"""The times of another process, where this one decides alike."""


@cache
def _times() -> Times:
    """Those of another process, or measured, or remembered from an earlier measurement by this user."""
    if _times_of_first_rank:
        return _times_of_first_rank
    files = [path for file in (onednn.FILE, blas.MKL_FILE) for path in blas.find_library_files(file)]
    identity = library_times.identify(files)
    remembered = library_times.recall(identity)
    if remembered is not None and _is_complete(remembered):
        return remembered
    times = _measure()
    library_times.remember(identity, times)
    return times


def _is_complete(times: Times) -> bool:
    """Whether these are times of all kinds of products by libraries that are there."""
    needed = {_name_kind("f32", rows, operand) for rows in _SAMPLE_ROWS for operand in (_CONSTANT, _VARIABLE)}
    possible = needed | {_name_kind(kind, "many rows", _CONSTANT) for kind in NARROW_TYPES}
    known = set(_installed())
    return needed <= times.keys() <= possible and all(
        times_of_kind and times_of_kind.keys() <= known for times_of_kind in times.values()
    )


def _measure() -> Times:
    from threadpoolctl import ThreadpoolController

    times: dict[str, dict[str, float]] = {}
    with ThreadpoolController().limit(limits=1, user_api="blas"), onednn.one_thread():
        for rows, extent in _SAMPLE_ROWS.items():
            for operand in (_CONSTANT, _VARIABLE):
                calls = {name: _prepare(name, "f32", extent, operand) for name in _installed()}
                times[_name_kind("f32", rows, operand)] = _time({n: call for n, call in calls.items() if call})
        for kind in NARROW_TYPES if ONEDNN in _installed() else ():
            call = _prepare(ONEDNN, kind, _SAMPLE_ROWS["many rows"], _CONSTANT)
            if call is not None:
                times[_name_kind(kind, "many rows", _CONSTANT)] = _time({ONEDNN: call})
    return times


def _prepare(library: str, kind: str, rows: int, operand: str) -> Run | None:
    """A product by a library; None where the library cannot be used."""
    if (library == MKL and blas.load_mkl() is None) or (library == ONEDNN and not onednn.is_available()):
        return None
    dtype = storage_dtype(kind)
    left, right, target = (np.ones(shape, dtype) for shape in ((rows, _EXTENT), (_EXTENT,) * 2, (rows, _EXTENT)))
    product = DenseProduct(left, right.T, target)
    if operand == _CONSTANT:
        form = prepacking.choose_form(product, 1, library, np.empty, converted=False)
        if form is not None:
            return form.multiply(form.pack(product.right))
    call = products.prepare_product(product, library, np.empty)
    return None if call is None else make_runner([call])


def _time(calls: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """The least microseconds of each, in rounds in which all of them take turns."""
    least = dict.fromkeys(calls, np.inf)
    for _ in range(1 + _ROUNDS):
        for name, call in calls.items():
            start = perf_counter()
            call()
            call()
            least[name] = min(least[name], (perf_counter() - start) * 5e5)
    return {name: round(float(time), 1) for name, time in least.items()}
