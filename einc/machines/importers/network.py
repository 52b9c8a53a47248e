"""The network between the hosts of a topology: one card for each GPU, or cards that a host's GPUs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from einc.machines.model import Pair, Resource

if TYPE_CHECKING:
    from einc.machines.importers.topology import MachineOverrides, Topology


def add_network(
    topology: Topology, resources: Sequence[Resource], overrides: MachineOverrides, assumptions: list[str]
) -> list[Resource]:
    """An egress and an ingress for every card, over the pairs of different hosts that nothing joins yet.

    A host with at least as many cards as sites has one for each site; else its sites share all of them. Of cards of
    several rates, those of the highest one count. Nothing is built for one host, or where no rate is known.
    """
    taken = {pair for resource in resources for pair in resource.pairs}
    host = topology.host
    sites = range(len(host))
    pairs = [(a, b) for a in sites for b in sites if host[a] != host[b] and (a, b) not in taken]
    if not pairs or (overrides.network_gbs is None and not all(topology.cards.get(site) for site in host)):
        return []
    out: dict[tuple[int, int], float] = {}  # by host, and by site where each has a card of its own: the rate
    end_of: list[tuple[int, int]] = []
    kinds = set()
    for site in sites:
        members = [member for member in sites if host[member] == host[site]]
        count, gbs = _find_cards(topology.cards.get(host[site], ()), overrides)
        own_card = count >= len(members)
        end = (host[site], site if own_card else -1)
        end_of.append(end)
        out[end] = gbs if own_card else gbs * count
        shared = "one for each site" if own_card else f"{count} for the sites of a host"
        kinds.add(f"cards of {gbs:g} GB/s, {shared}")
    assumptions.append(f"network: {'; '.join(sorted(kinds))} (--network-gbs, --network-cards)")
    leaving: dict[tuple[int, int], list[Pair]] = {}
    entering: dict[tuple[int, int], list[Pair]] = {}
    for a, b in pairs:
        leaving.setdefault(end_of[a], []).append((a, b))
        entering.setdefault(end_of[b], []).append((a, b))
    host_resources = []
    for end, gbs in out.items():
        name = f"{end[0]}" if end[1] < 0 else f"{end[1]}"
        for way, table in (("out", leaving), ("in", entering)):
            if end in table:
                host_resources.append(Resource(f"net {way} {name}", gbs, tuple(table[end])))
    return host_resources


def _find_cards(rates: tuple[float, ...], overrides: MachineOverrides) -> tuple[int, float]:
    """How many cards a host has that are as fast as its fastest one, and the rate of each in GB/s per direction."""
    fastest = max(rates, default=0.0)
    return overrides.network_cards or rates.count(fastest) or 1, overrides.network_gbs or fastest
