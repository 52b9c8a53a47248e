"""Packets: data with a flag, for which a step waits, and which orders nothing else.

A place for packets is written once, so that each packet is known to be there when its flag is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from einc.exchange.collectives.algorithm import ChunkSlot, CollectiveAlgorithm, Step


def expand_slots(
    slots: Sequence[ChunkSlot], count: int, locate: Callable[[ChunkSlot], ChunkSlot]
) -> Iterator[ChunkSlot]:
    """The memory of each chunk of `count` from each slot on."""
    for rank, buffer, index in slots:
        for offset in range(count):
            yield locate(ChunkSlot(rank, buffer, index + offset))


def match_packets(algorithm: CollectiveAlgorithm) -> tuple[list[list[int]], list[tuple[str, Step]]]:
    """For every step the steps whose packets it takes; and faults, each with the step that it is about."""
    steps, locate = algorithm.steps, algorithm.collective.locate
    before: list[list[int]] = [[] for _ in steps]
    faults: list[tuple[str, Step]] = []
    writer: dict[ChunkSlot, int] = {}
    for position, step in enumerate(steps):
        for slot in expand_slots(step.gives, step.count, locate):
            if writer.setdefault(slot, position) != position:
                faults.append((f"{step} sends packets to {slot}, as {steps[writer[slot]]} does", step))
    taken: set[ChunkSlot] = set()
    for position, step in enumerate(steps):
        for slot in expand_slots(step.takes, step.count, locate):
            taken.add(slot)
            if slot not in writer:
                faults.append((f"{step} waits for ever for packets in {slot}, which nothing sends", step))
            elif writer[slot] not in before[position]:
                before[position].append(writer[slot])
        plain = [slot for slot in (*step.operands, *step.results) if slot not in step.takes and slot not in step.gives]
        for slot in expand_slots(plain, step.count, locate):
            if slot in writer:
                faults.append((f"{step} touches {slot}, where {steps[writer[slot]]} sends packets", step))
    for slot, position in writer.items():
        if slot.rank != steps[position].rank and slot not in taken:
            message = f"{steps[position]} sends packets to {slot}, which does not wait for their end"
            faults.append((message, steps[position]))
    return before, faults
