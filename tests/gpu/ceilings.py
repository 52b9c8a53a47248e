"""What this GPU can do at most: bytes to and from its memory, and operations of its tensor cores, in a second.

Both are measured, by a large copy and a large sum, and by a large product of matrices of 16 bits, with the clocks and
the power while the GPU is at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.gpu.gpu_states import sample

if TYPE_CHECKING:
    from tests.gpu.places import Place

ELEMENTS, EXTENT = 1 << 29, 8192
"""Of 16 bits in an array that is copied (1 GiB), and rows of the matrices."""
SMALL = 1 << 16, 64
"""The same in a rehearsal."""
ROUNDS, SECONDS = 5, 0.2
"""Timed rounds, the best of which counts, and seconds of work behind which the state is asked for."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes and 16-bit operations in a second, and the GPU's states while they were measured."""

    bytes: float
    operations: float
    states: dict[str, dict[str, str]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def arguments(self) -> list[str]:
        """What tells a worker of them."""
        return [f"{self.bytes:.6g}", f"{self.operations:.6g}"]


def measure(place: Place) -> Iterator[dict[str, Any]]:
    """One record: a Ceilings."""
    import torch

    elements, extent = SMALL if place.rehearsal else (ELEMENTS, EXTENT)
    options: dict[str, Any] = {"device": place.torch, "dtype": torch.float16}
    states: dict[str, dict[str, str]] = {}
    with torch.inference_mode():
        moved = _bytes_per_second([torch.ones(elements, **options) for _ in range(3)], place, states)
        left, right = (torch.randn(extent, extent, **options) for _ in range(2))
        product = torch.empty(extent, extent, **options)
        took = _seconds(lambda: torch.mm(left, right, out=product), place, "product", states)
    yield Ceilings(moved, 2 * extent**3 / took, states).record()


def _bytes_per_second(arrays: list[Any], place: Place, states: dict[str, dict[str, str]]) -> float:
    import torch

    one, other, result = arrays
    size = one.numel() * one.element_size()
    copied = _seconds(lambda: result.copy_(one), place, "copy", states)
    added = _seconds(lambda: torch.add(one, other, alpha=2, out=result), place, "triad", states)
    return max(2 * size / copied, 3 * size / added)


def _seconds(call: Callable[[], Any], place: Place, name: str, states: dict[str, dict[str, str]]) -> float:
    """The least time of one call among several in a row, after enough of them to be warm."""
    call()
    place.wait()
    begin = perf_counter()
    call()
    place.wait()
    count = 1 if place.rehearsal else max(3, int(SECONDS / ROUNDS / max(perf_counter() - begin, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = perf_counter()
        for _ in range(count):
            call()
        place.wait()
        best = min(best, (perf_counter() - begin) / count)
    for _ in range(count * ROUNDS):  # work behind which the state is asked for
        call()
    states[name] = sample()
    place.wait()
    return best
