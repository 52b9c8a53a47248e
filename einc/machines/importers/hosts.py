"""A hosts file, as MPI launchers read it: one host a line, `NAME slots=N`. Every slot is a site.

What is inside a host comes from the topology of one node, of which all hosts are copies.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from einc.errors import MachineError, SourceSpan, UsageError
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,252}"
_HOST_LINE = re.compile(rf"({_NAME})(?:\s+[a-z_\-]{{1,20}}=[A-Za-z0-9_]{{1,20}})*\s*")
_SLOTS = re.compile(r"\sslots=(\S*)")
_MAX_SHOWN_NAME = 40
"""Characters of a host's name that messages show."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host and the number of its sites."""

    name: str
    slots: int


def is_hosts_file(text: str) -> bool:
    """Whether the first line that says something gives a host its slots."""
    for line in text.splitlines()[:1000]:
        words = line.partition("#")[0].strip()
        if words:
            return _SLOTS.search(words) is not None
    return False


def read_hosts(text: str, where: str) -> tuple[Host, ...]:
    """The hosts of a file, in its order; words other than `slots=N` are ignored. Raises MachineError at the line of
    the first mistake."""
    hosts: dict[str, Host] = {}
    total = 0
    for row, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        span = SourceSpan(where, row, 1, min(len(line), 200) + 1, line[:200])
        host_line, slots = _HOST_LINE.fullmatch(words), _SLOTS.search(words)
        if host_line is None or slots is None:
            raise MachineError("expected a host, as in `node1 slots=8`", where=span)
        if not re.fullmatch(r"[0-9]{1,4}", slots[1]) or not 1 <= int(slots[1]) <= MAX_SITES:
            raise MachineError(
                f"expected slots from 1 to {MAX_SITES}, found {slots[1][:_MAX_SHOWN_NAME]!r}",
                where=span,
                hint="each slot is a site, such as a GPU",
            )
        if host_line[1] in hosts:
            raise MachineError(f"the host {host_line[1][:_MAX_SHOWN_NAME]} is listed twice", where=span)
        hosts[host_line[1]] = Host(host_line[1], int(slots[1]))
        total += int(slots[1])
        if total > MAX_SITES:
            raise MachineError(f"the hosts have more than {MAX_SITES} slots", where=span)
    if not hosts:
        raise MachineError("the file lists no hosts", where=where, hint="a line is a host, as in `node1 slots=8`")
    return tuple(hosts.values())


def join_hosts(hosts: tuple[Host, ...], node: Topology | None) -> Topology:
    """The topology of all hosts, each with the first GPUs of the node, as many as it has slots.

    Without a node, all that is known is which sites share a host. Raises UsageError where a host has more slots than
    the node has GPUs, or the node is several.
    """
    if node is not None and len(set(node.host)) > 1:
        raise UsageError(
            "--node describes several computers", hint="let NCCL write the topology of one: all_reduce_perf on one node"
        )
    labels: list[str] = []
    joined = Topology((), (), {}, (), ())
    for number, host in enumerate(hosts):
        if node is not None and host.slots > len(node.labels):
            name = host.name[:_MAX_SHOWN_NAME]
            raise UsageError(f"{name} has {host.slots} slots, but the node has {len(node.labels)} GPUs")
        first, host_slots = len(labels), range(host.slots)
        names = [f"slot {k}" for k in host_slots] if node is None else node.labels[: host.slots]
        labels += [f"{host.name[:_MAX_SHOWN_NAME]} {name}" for name in names]
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
