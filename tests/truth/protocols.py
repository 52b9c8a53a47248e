"""NCCL on the GPUs of one computer: what its protocols cost, as fitted to its measured times (`protocols.json`).

All sizes are bytes, all times microseconds, all rates GB/s. Three protocols (LL, LL128, Simple) differ in what a step
of a ring costs and in the rate of the bytes; NVLS is the all-reduce in which the switches add. The least time counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
US_PER_BYTE = 1e-3  # at one GB/s


@dataclass(frozen=True, slots=True)
class Protocol:
    """`start_us` is the launch, and the first and last synchronization. A step takes `hop_us` and its bytes at `gbs`.
    One chunk more passes at `copy_gbs`, within the memory of its GPU: from the input to the output."""

    start_us: float
    hop_us: float
    gbs: float
    copy_gbs: float

    def time_ring(self, steps: int, chunk: float, share: float) -> float:
        """Microseconds for so many steps; `share` is the part of the rate that is left where links are shared."""
        moving = steps * chunk / (self.gbs * share) + chunk / self.copy_gbs
        return self.start_us + steps * self.hop_us + moving * US_PER_BYTE


@dataclass(frozen=True, slots=True)
class SwitchSums:
    """NVLS: the switches add and multicast, so that a link carries the buffer, and a p-th of it, each way."""

    start_us: float
    gbs: float

    def time_all_reduce(self, size: float, gpus: int) -> float:
        return self.start_us + size * (1 + 1 / gpus) / self.gbs * US_PER_BYTE


@dataclass(frozen=True, slots=True)
class PeerSends:
    """An all-to-all: small chunks by LL and middle ones over few channels, at rates of each peer; large ones at that of
    the links. `peer_us` is the cost of a peer beyond the first."""

    peer_us: float
    ll_start_us: float
    ll_gbs: float
    few_start_us: float
    few_gbs: float
    start_us: float
    gbs: float
    copy_gbs: float

    def time_small(self, size: float, gpus: int, share: float) -> float:
        """Microseconds where rates are those of a peer, which no resource of a machine can say."""
        chunk = size / gpus * US_PER_BYTE / share
        fastest = min(self.ll_start_us + chunk / self.ll_gbs, self.few_start_us + chunk / self.few_gbs)
        return fastest + (gpus - 2) * self.peer_us


@dataclass(frozen=True, slots=True)
class Fabric:
    """NCCL on one kind of computer. Over PCIe, `shares` and `send_shares` say, by the number of GPUs, what part of the
    rate of two is left."""

    protocols: Mapping[str, Protocol]
    sends: PeerSends
    switch: SwitchSums | None
    switch_min_gpus: int
    shares: Mapping[int, float]
    send_shares: Mapping[int, float]


def load_fabrics() -> dict[str, Fabric]:
    """By the name of the GPU."""
    document = json.loads((FOLDER / "protocols.json").read_text("utf-8"))
    return {
        gpu: Fabric(
            {name: Protocol(**_open(values)) for name, values in entry["protocols"].items()},
            PeerSends(**_open(entry["sends"])),
            SwitchSums(**entry["switch"]) if entry["switch"] else None,
            entry["switch_min_gpus"],
            {int(gpus): share for gpus, share in entry["shares"].items()},
            {int(gpus): share for gpus, share in entry["send_shares"].items()},
        )
        for gpu, entry in document.items()
    }


def count_ring_steps(collective: str, gpus: int) -> int:
    """How often every GPU of a ring sends a chunk."""
    return (2 if collective == "all_reduce" else 1) * (gpus - 1)


def _open(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.inf if value is None else value for name, value in values.items()}
