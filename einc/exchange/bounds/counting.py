"""The counting bound: how many transfers an aggregate takes, whatever ways they go.

Take the transfers for X of one piece in the order of their ends, and let each bring all that its source then knows:
that only helps. Where no site holds all atoms, some site v is the first to know all. By then a transfer has left each
of n disjoint sets of holders that v is not in; every other target has still to receive one. That makes n + t - 1
transfers, or n + t - 2 where v is both a holder and a target. Transfers for disjoint aggregates are different ones, and
all of them share the capacity of the whole network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from einc.exchange.bounds.certificate import after_latency, bytes_text, rate_text
from einc.exchange.bounds.demand import Demand, Demands
from einc.exchange.network import Network


@dataclass(frozen=True, slots=True)
class Counting:
    """All transfers together, through everything."""

    def worth(self, demands: Demands, network: Network) -> float:
        sent = _bytes(demands)
        if not sent:
            return 0.0
        return sent / network.total_capacity + network.transfer_latency if network.total_capacity else float("inf")

    def words(self, demands: Demands, network: Network) -> str:
        sent, capacity = bytes_text(_bytes(demands)), rate_text(network.total_capacity)
        latency = after_latency(network.transfer_latency)
        return f"counting: transfers of {sent} at least, through {capacity} in all{latency}"


def _bytes(demands: Demands) -> int:
    return sum(demand.size * transfers(demand) for demand in demands.family)


def transfers(demand: Demand) -> int:
    """The least number of transfers for a copy of one of a demand's aggregates, `awaited` targets included."""
    targets = demand.targets.bit_count() + demand.awaited
    packed = disjoint(demand.holders)
    if not targets or demand.complete or len(packed) == 1:
        return targets
    shared = demand.awaited or any(holder & demand.targets for holder in packed)
    return len(packed) + targets - (2 if shared else 1)


@lru_cache(maxsize=1 << 10)
def disjoint(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Pairwise disjoint sets of them, small ones first; searches of memberships ask for the same ones in turns."""
    packed: list[int] = []
    taken = 0
    for holder in sorted(holders, key=lambda holder: (holder.bit_count(), holder)):
        if not holder & taken:
            taken |= holder
            packed.append(holder)
    return tuple(packed)
