"""Collectives among the GPUs of one computer as forms with few parameters, which `fitting` fits to measured times.

A collective of NCCL is a ring: in every step each GPU passes one chunk of its data to the next GPU. Three protocols
(LL, LL128, Simple) differ in what a step costs and in the rate of the bytes. `NVLS` is the all-reduce in which the
switches add. The all-reduces of serving frameworks read the buffers of all peers in one kernel (one-shot), or scatter
and gather in one kernel (two-shot). The time of a collective is the least over what may be chosen.

Sizes are bytes, times microseconds, rates GB/s. The size of a collective is what nccl-tests calls it: the whole buffer
of an all-reduce, what every GPU has at the end of an all-gather, what every GPU gives to a reduce-scatter and to an
all-to-all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

US_PER_BYTE = 1e-3
"""Of one GB/s: a byte takes a thousandth of a microsecond."""

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "all_gather", "reduce_scatter", "alltoall"
COLLECTIVES = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
SWITCH_GPUS = 8
"""NCCL lets switches add among so many GPUs or more."""


def count_ring_steps(collective: str, gpus: int) -> int:
    """How often every GPU of a ring sends a chunk of a p-th of the data."""
    return (2 if collective == ALL_REDUCE else 1) * (gpus - 1)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol of a ring.

    `start_us` is the launch with the first and the last synchronization, once. A step takes `hop_us` and its bytes at
    `gbs`. One chunk more is copied at `copy_gbs` within the memory of its GPU, from the input to the output or back.
    """

    start_us: float
    hop_us: float
    gbs: float
    copy_gbs: float

    def extra_us(self, chunk: float) -> float:
        """What no step of the ring has."""
        return self.start_us + chunk / self.copy_gbs * US_PER_BYTE

    def ring_us(self, steps: int, chunk: float, share: float = 1.0) -> float:
        """`share` scales the rate of links that others use, too."""
        return self.extra_us(chunk) + steps * (self.hop_us + chunk / (self.gbs * share) * US_PER_BYTE)


@dataclass(frozen=True, slots=True)
class SwitchReduction:
    """NVLS: switches add and multicast. Each link carries the whole buffer, and a p-th of it, each way."""

    start_us: float
    gbs: float

    def all_reduce_us(self, size: float, gpus: int) -> float:
        return self.start_us + size * (1 + 1 / gpus) / self.gbs * US_PER_BYTE


@dataclass(frozen=True, slots=True)
class PeerSends:
    """An all-to-all: every GPU sends a chunk to every other one at once.

    Small chunks go through one channel to each peer, middle ones through few: then `ll_gbs` and `few_gbs` are the rates
    to each peer, however many there are. Large ones share the links at `gbs`, and the chunk that stays is copied at
    `copy_gbs`. Each further peer costs `peer_us`.
    """

    peer_us: float
    ll_start_us: float
    ll_gbs: float
    few_start_us: float
    few_gbs: float
    start_us: float
    gbs: float
    copy_gbs: float

    def all_to_all_us(self, size: float, gpus: int, share: float = 1.0) -> float:
        chunk = size / gpus
        small = self.ll_start_us + chunk / (self.ll_gbs * share) * US_PER_BYTE
        middle = self.few_start_us + chunk / (self.few_gbs * share) * US_PER_BYTE
        large = self.start_us + ((gpus - 1) * chunk / (self.gbs * share) + chunk / self.copy_gbs) * US_PER_BYTE
        return min(small, middle, large) + (gpus - 2) * self.peer_us


@dataclass(frozen=True, slots=True)
class Collectives:
    """NCCL on a system.

    `shares` has, by the number of GPUs, what is left of the rates of two GPUs, and `send_shares` the same for
    all-to-all: on a fabric of switches all of it, over PCIe what shared bridges and processors leave.
    """

    protocols: Mapping[str, Protocol]
    sends: PeerSends
    switch: SwitchReduction | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    send_shares: Mapping[int, float] = field(default_factory=dict)

    def time_us(self, collective: str, size: float, gpus: int, adds_in_switch: bool = True) -> float:
        """The least time; `adds_in_switch` says whether switches can add what is reduced (they do not add int8)."""
        if collective == ALL_TO_ALL:
            return self.sends.all_to_all_us(size, gpus, self.send_shares.get(gpus, 1.0))
        share, steps = self.shares.get(gpus, 1.0), count_ring_steps(collective, gpus)
        times = [protocol.ring_us(steps, size / gpus, share) for protocol in self.protocols.values()]
        if self.switch and collective == ALL_REDUCE and adds_in_switch and gpus >= SWITCH_GPUS:
            times.append(self.switch.all_reduce_us(size, gpus))
        return min(times)


@dataclass(frozen=True, slots=True)
class PeerKernel:
    """An all-reduce in one kernel that reads the buffers of its peers.

    One-shot: each GPU reads the whole buffers of its peers and adds them. Two-shot: each GPU reads a p-th of each and
    adds them, waits for the others, and reads the other sums. `start_us` is the launch, in a CUDA graph, and a barrier
    of two GPUs, `peer_us` what a barrier takes longer for each further peer, `barrier_us` the second barrier.
    """

    start_us: float
    peer_us: float
    one_shot_gbs: float
    barrier_us: float
    two_shot_gbs: float
    shares: Mapping[int, float] = field(default_factory=dict)

    def begin_us(self, gpus: int) -> float:
        """Until everybody knows that everybody has begun."""
        return self.start_us + (gpus - 2) * self.peer_us

    def all_reduce_us(self, size: float, gpus: int) -> float:
        """The faster of the two."""
        share = self.shares.get(gpus, 1.0)
        one_shot = (gpus - 1) * size / (self.one_shot_gbs * share)
        two_shot = 2 * (gpus - 1) / gpus * size / (self.two_shot_gbs * share)
        return self.begin_us(gpus) + min(one_shot * US_PER_BYTE, self.barrier_us + two_shot * US_PER_BYTE)
