"""The topology of several hosts: a list of hosts (`host_lists.py`), and the topology of one node.

All hosts are copies of the node.
"""

from __future__ import annotations

import dataclasses

from einc.errors import UsageError
from einc.machines.importers.host_lists import Host
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair


def join_hosts(hosts: tuple[Host, ...], node: Topology | None) -> Topology:
    """The topology of all hosts, each with the first GPUs of the node, as many as it has slots.

    Without a node, all that is known is which sites share a host. Raises UsageError where a host has more slots than
    the node has GPUs, or the node is several.
    """
    if node is not None and len(set(node.host)) > 1:
        raise UsageError(
            "--node describes several computers", hint="let NCCL write the topology of one: all_reduce_perf on one node"
        )
    if node is None and not all(host.slots for host in hosts):
        hosts = tuple(Host(host.name, 1) for host in hosts)
    labels: list[str] = []
    joined = Topology((), (), {}, (), ())
    for number, host in enumerate(hosts):
        if node is not None and host.slots > len(node.labels):
            raise UsageError(f"{host.shown_name} has {host.slots} slots, but the node has {len(node.labels)} GPUs")
        if node is not None and not host.slots:
            host = Host(host.name, len(node.labels))
        first, host_slots = len(labels), range(host.slots)
        names = [f"slot {k}" for k in host_slots] if node is None else node.labels[: host.slots]
        labels += [f"{host.shown_name} {name}" for name in names]
        inside = {} if node is None else node.direct
        apart = frozenset() if node is None else node.unreachable
        staged = None if node is None else node.staged
        joined = dataclasses.replace(
            joined,
            gpus=joined.gpus + ((None,) * host.slots if node is None else node.gpus[: host.slots]),
            switched=joined.switched + ((0,) * host.slots if node is None else node.switched[: host.slots]),
            host=joined.host + (number,) * host.slots,
            direct={
                **joined.direct,
                **{(first + a, first + b): n for (a, b), n in inside.items() if a in host_slots and b in host_slots},
            },
            ways=joined.ways + (() if node is None else node.ways[: host.slots]),
            unreachable=joined.unreachable | _shift(apart, first, host_slots),
            staged=None if staged is None else (joined.staged or frozenset()) | _shift(staged, first, host_slots),
        )
    if node is None:
        return dataclasses.replace(joined, labels=tuple(labels))
    return dataclasses.replace(
        joined,
        labels=tuple(labels),
        counts_switches=node.counts_switches,
        pcie_gbs=node.pcie_gbs,
        socket_gbs=node.socket_gbs,
        unknown=node.unknown,
        notes=node.notes,
        cards=dict.fromkeys(range(len(hosts)), node.cards[0]) if node.cards else {},
        apart=True,
    )


def _shift(pairs: frozenset[Pair], first: int, members: range) -> frozenset[Pair]:
    """The pairs of a node as those of a host whose sites begin at `first`, as far as it has these members."""
    return frozenset((first + a, first + b) for a, b in pairs if a in members and b in members)
