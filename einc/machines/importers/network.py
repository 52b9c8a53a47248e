"""The network between the hosts of a topology: one card for each GPU, or cards that a host's GPUs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einc.machines.model import Pair, Resource


def add_network(
    host: Sequence[int],
    cards: Mapping[int, tuple[float, ...]],
    resources: Sequence[Resource],
    assumptions: list[str],
    *,
    gbs: float | None,
    count: int | None,
) -> list[Resource]:
    """An egress and an ingress for every card, over the pairs of different hosts that nothing joins yet.

    `host` and `cards` are those of the topology. `gbs` and `count` say what each card of a host carries, and how many
    there are; None leaves it to `cards`.
    A host with at least as many cards as sites has one for each site; else its sites share all of them. Of cards of
    several rates, those of the highest one count. Nothing is built for one host, or where no rate is known.
    """
    taken = {pair for resource in resources for pair in resource.pairs}
    sites = range(len(host))
    pairs = [(a, b) for a in sites for b in sites if host[a] != host[b] and (a, b) not in taken]
    if not pairs or (gbs is None and not all(cards.get(site) for site in host)):
        return []
    out: dict[tuple[int, int], float] = {}  # by host, and by site where each has a card of its own: the rate
    end_of: list[tuple[int, int]] = []
    kinds = set()
    for site in sites:
        members = [member for member in sites if host[member] == host[site]]
        number, rate = _find_cards(cards.get(host[site], ()), gbs, count)
        own_card = number >= len(members)
        end = (host[site], site if own_card else -1)
        end_of.append(end)
        out[end] = rate if own_card else rate * number
        shared = "one for each site" if own_card else f"{number} for the sites of a host"
        kinds.add(f"cards of {rate:g} GB/s, {shared}")
    assumptions.append(f"network: {'; '.join(sorted(kinds))} (--network-gbs, --network-cards)")
    leaving: dict[tuple[int, int], list[Pair]] = {}
    entering: dict[tuple[int, int], list[Pair]] = {}
    for a, b in pairs:
        leaving.setdefault(end_of[a], []).append((a, b))
        entering.setdefault(end_of[b], []).append((a, b))
    host_resources = []
    for end, rate in out.items():
        name = f"{end[0]}" if end[1] < 0 else f"{end[1]}"
        for way, table in (("out", leaving), ("in", entering)):
            if end in table:
                host_resources.append(Resource(f"net {way} {name}", rate, tuple(table[end])))
    return host_resources


def _find_cards(rates: tuple[float, ...], gbs: float | None, count: int | None) -> tuple[int, float]:
    """How many cards a host has that are as fast as its fastest one, and the rate of each in GB/s per direction."""
    fastest = max(rates, default=0.0)
    return count or rates.count(fastest) or 1, gbs or fastest
