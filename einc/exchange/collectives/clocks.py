"""The order of the steps of an algorithm: for each, which steps have ended for certain when it begins.

Three orders are told apart: what orders data; that with packets, after which what they were made of can be overwritten;
and that with relaxed signals, which say who runs on, and what switches have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einc.exchange.collectives.algorithm import Step

ClockArray = np.ndarray[tuple[int, ...], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class StepClocks:
    """What has ended for certain when a step begins: of data, with packets, and with relaxed signals."""

    data: ClockArray
    with_packets: ClockArray | None
    with_relaxed: ClockArray | None

    def choose(self, step: Step, overwrites: bool = False) -> ClockArray:
        """The order that counts for what a step did."""
        if step.by_switch and self.with_relaxed is not None:
            return self.with_relaxed
        return self.with_packets if overwrites and self.with_packets is not None else self.data


def compute_clocks(
    steps: Sequence[Step],
    blocks: dict[tuple[int, int], int],
    before: Sequence[Sequence[int]],
    order: Sequence[int],
    *,
    relaxed: bool = False,
) -> ClockArray:
    """For every step and thread block, the last step of the block that has ended for certain when the step begins; with
    `relaxed`, by relaxed signals too."""
    clocks = np.full((len(steps), max(1, len(blocks))), -1, dtype=np.int32)
    for position in order:
        clock = clocks[position]
        for edge in before[position]:
            predecessor = steps[edge]
            signals = predecessor.signals and steps[position].awaits
            if signals and (predecessor.relaxed or steps[position].relaxed) and not relaxed:
                continue  # who runs on, but nothing about data
            np.maximum(clock, clocks[edge], out=clock)
            block = blocks[predecessor.rank, predecessor.block]
            clock[block] = max(int(clock[block]), predecessor.number)
    return clocks
