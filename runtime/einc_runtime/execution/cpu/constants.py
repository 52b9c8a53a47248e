"""Weights between loading and running: products want them laid out in their own way, once, if memory allows.

What is laid out stays beside the weights as they were loaded; `size` says how much that is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from einc_runtime.dtypes import Array
from einc_runtime.execution.cpu.host import available_memory
from einc_runtime.kernels.base import Kernel, PrepackedOperand, address

SHARE = 2
"""One part in so many of the memory that is available may be taken."""


class Constants:
    """The packs of some kernels. None are made where they take too much memory: kernels do without."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        packs = {pack: address(pack.source) for kernel in kernels for pack in kernel.prepacked}
        available = available_memory()
        if available is not None and sum(pack.size for pack in packs) > available // SHARE:
            packs = {}
        self._packs = sorted(packs, key=packs.__getitem__)
        self._addresses = [packs[pack] for pack in self._packs]
        self._stale = set(self._packs)

    @property
    def size(self) -> int:
        """Bytes of all packs."""
        return sum(pack.size for pack in self._packs)

    def changed(self, weights: Array) -> None:
        """Other values are in this array, which is dense."""
        first = address(weights)
        for pack in self._packs[
            bisect_left(self._addresses, first) : bisect_left(self._addresses, first + weights.nbytes)
        ]:
            pack.data = None
            self._stale.add(pack)

    def lay_out(self, workers: int) -> None:
        """Makes the packs of what has changed."""
        if self._stale:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(workers) as threads:
                list(threads.map(PrepackedOperand.make, sorted(self._stale, key=lambda pack: address(pack.source))))
            self._stale.clear()
