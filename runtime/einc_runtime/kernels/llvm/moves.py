"""Many moves of bytes as one call of machine code.

With many sites a buffer is put together from hundreds of small pieces. numpy makes each of them with a call of its own,
and gives the interpreter's lock away and waits for it each time, which takes longer than to move the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, address, plain
from einc_runtime.kernels.calls.moves import require_alike
from einc_runtime.kernels.llvm import llvm
from einc_runtime.kernels.numpy.pieces import runner
from einc_runtime.kernels.pitched import count_rows, rows_of

FEWEST = 4
"""Moves below which numpy's calls are as good."""

SHORTEST = 64
"""Bytes of a row below which numpy, which knows elements, is faster than one copy for each."""

_FIELDS = 6


def build_moves(sources: Sequence[Array], targets: Sequence[Array]) -> Kernel:
    """Copies arrays pairwise."""
    require_alike(sources, targets)
    run = moves(sources, targets)
    if run is None:
        run = runner([(np.copyto, [plain(to), plain(of)]) for to, of in zip(targets, sources, strict=True)])
    return Kernel(lambda _: run, nanoseconds=0.15 * sum(source.nbytes for source in sources))


def moves(sources: Sequence[Array], targets: Sequence[Array]) -> Run | None:
    """What copies arrays of equal shapes and types; None where numpy should."""
    pairs = [(target, source) for target, source in zip(targets, sources, strict=True) if target.size]
    if len(pairs) < FEWEST or not llvm.worthwhile(sum(target.size for target, _ in pairs)):
        return None
    table: list[int] = []
    for target, source in pairs:
        layout = (target.shape, target.itemsize, target.strides, source.strides)
        if count_rows(*layout) > target.nbytes // SHORTEST:
            return None
        to, start = address(target), address(source)
        for rows in rows_of(*layout):
            if rows.width < SHORTEST:
                return None
            table += [to + rows.target, start + rows.source]
            table += [rows.target_pitch, rows.source_pitch, rows.width, rows.height]
    held = np.array(table, np.int64)
    return llvm.Call(_function(), [len(table), address(held)], held, *targets, *sources)


@llvm.code
def _function() -> Any:
    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    count, table = e.argument(), e.argument()
    with e.loop(count, _FIELDS) as first:
        target, source, target_pitch, source_pitch, width, height = (
            e.read(table, e.b.add(first, I64(field)), I64) for field in range(_FIELDS)
        )
        with e.loop(height) as row:
            to = e.b.add(target, e.b.mul(row, target_pitch))
            e.copy(to, e.b.add(source, e.b.mul(row, source_pitch)), width)
    return e.finish()
