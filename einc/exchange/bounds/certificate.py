"""Certificates: a lower bound on the completion time of all bodies of a preamble, with a witness that proves it.

A witness holds only what was chosen (sites, prices, weights). `proved_ms` computes from the preamble and the machine
what it proves, so that neither an error in a search nor the tolerance of an LP solver can make a bound unsound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from einc.exchange.bounds.demands import DemandSet
from einc.exchange.network import Network


class Witness(Protocol):
    """What proves a bound."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        """The milliseconds that it proves."""

    def explain(self, demands: DemandSet, network: Network) -> str:
        """The argument, in words."""


@dataclass(frozen=True, slots=True)
class ZeroWitness:
    """The bound zero: nothing has to be done."""

    def proved_ms(self, demands: DemandSet, network: Network) -> float:
        return 0.0

    def explain(self, demands: DemandSet, network: Network) -> str:
        return "everything is where it is needed"


@dataclass(frozen=True, slots=True)
class Certificate:
    """No body, with atoms split or not, completes before `bound_ms`. Only the latency of one transfer is counted.

    `whole_atoms` says that it holds only where no atom is split. `memberships` are those of open partitions under which
    the bound was found, the least over all of them; empty where none were open.
    """

    bound_ms: float
    bound_by: str
    witness: Witness
    whole_atoms: bool = False
    memberships: tuple[tuple[str, tuple[int, ...]], ...] = ()


def format_bytes(size: float) -> str:
    """An amount of bytes with three digits in the fitting unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} B"


def format_rate(bytes_per_ms: float) -> str:
    """A capacity in GB/s."""
    return f"{bytes_per_ms / 1e6:.6g} GB/s"


def format_latency(milliseconds: float) -> str:
    """The latency that passes before any transfer is under way, as the end of a sentence."""
    return f", after {milliseconds * 1e3:g} us of latency" if milliseconds else ""
