"""Lists of hosts, as launchers of MPI and Slurm read and write them. Every slot of a host is a site.

- `node1 slots=8`: Open MPI; other words are ignored;
- `node1:8`: MPICH and Intel MPI;
- `node1`, one line for each slot: machine files of batch systems. If each host has one line, it has all its GPUs;
- `node[01-04,7]`: Slurm's way to write several, alone or with one of the above;
- `SLURM_JOB_NODELIST=...` and `SLURM_TASKS_PER_NODE=8(x4)`: what `env` prints in a job of Slurm.

Together with the topology of one node, of which all hosts are copies, a list is a topology.
The network between hosts is one card for each GPU, or cards that a host's GPUs share.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from einc.errors import MachineError, SourceSpan, UsageError
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair, Resource
from einc.machines.schema import MAX_SITES

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,252}"
_HOST_WORD = rf"{_NAME}(?:\[[0-9,\-]{{1,400}}\][A-Za-z0-9_.\-]{{0,60}})?"
_SLOTS_LINE = re.compile(rf"({_HOST_WORD})(?:\s+[a-z_\-]{{1,20}}=[A-Za-z0-9_]{{1,20}})*\s*")
_SLOTS = re.compile(r"\sslots=(\S*)")
_COLON_LINE = re.compile(rf"({_HOST_WORD}):([0-9]{{1,10}})")
_PLAIN_LINE = re.compile(rf"({_HOST_WORD})")
_LABEL_OF_GPU = re.compile(r"GPU[0-9]+|X", re.IGNORECASE)
_SLURM = re.compile(r"(SLURM_[A-Z_]{1,40})=(\S{1,2000})")
_NODE_LISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST")
_TASKS = ("SLURM_GPUS_ON_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")
_MAX_SHOWN_NAME = 40
"""Characters of a host's name that messages show."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host and the number of its sites; 0 where only the topology of a node says it."""

    name: str
    slots: int

    @property
    def shown_name(self) -> str:
        return self.name[:_MAX_SHOWN_NAME]


def is_hosts_file(text: str) -> bool:
    """Whether the first line that says something is one of a list of hosts, and, of names alone, all lines are."""
    lines = [words for line in text.splitlines()[: 2 * MAX_SITES] if (words := line.partition("#")[0].strip())]
    if not lines:
        return False
    if _SLOTS.search(lines[0]) or _COLON_LINE.fullmatch(lines[0]) or any(map(_read_slurm_list, lines)):
        return True
    return all(_PLAIN_LINE.fullmatch(line) and not _LABEL_OF_GPU.fullmatch(line) for line in lines)


def read_hosts(text: str, where: str) -> tuple[Host, ...]:
    """The hosts of a list, in its order. Raises MachineError at the line of the first mistake."""
    lines = [
        (words, SourceSpan(where, row, 1, min(len(line), 200) + 1, line[:200]))
        for row, line in enumerate(text.split("\n"), 1)
        if (words := line.partition("#")[0].strip())
    ]
    if not lines:
        raise MachineError("the file lists no hosts", where=where, hint="a line is a host, as in `node1 slots=8`")
    if any(_read_slurm_list(words) for words, _ in lines):
        return _read_slurm(lines)
    first = lines[0][0]
    hosts: dict[str, int] = {}
    plain = not _SLOTS.search(first) and not _COLON_LINE.fullmatch(first)
    for words, span in lines:
        word, slots = _read_line(words, span, first)
        for name in _expand(word, span):
            if name in hosts and not plain:
                raise MachineError(f"the host {name[:_MAX_SHOWN_NAME]} is listed twice", where=span)
            hosts[name] = hosts.get(name, 0) + slots
        _require_few(hosts, span)
    if plain and set(hosts.values()) == {1}:
        hosts = dict.fromkeys(hosts, 0)
    return tuple(Host(name, slots) for name, slots in hosts.items())


def _read_line(words: str, span: SourceSpan, first: str) -> tuple[str, int]:
    """The hosts of a line as they are written, and the slots of each. All lines have the form of the first."""
    if _SLOTS.search(first):
        line, slots = _SLOTS_LINE.fullmatch(words), _SLOTS.search(words)
        if line is None or slots is None:
            raise MachineError("expected a host, as in `node1 slots=8`", where=span)
        return line[1], _read_slots(slots[1], span)
    if _COLON_LINE.fullmatch(first):
        line = _COLON_LINE.fullmatch(words)
        if line is None:
            raise MachineError("expected a host and its slots, as in `node1:8`", where=span)
        return line[1], _read_slots(line[2], span)
    line = _PLAIN_LINE.fullmatch(words)
    if line is None:
        raise MachineError("expected the name of a host alone, as in the lines before", where=span)
    return line[1], 1


def _read_slots(text: str, span: SourceSpan) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_SITES:
        raise MachineError(
            f"expected slots from 1 to {MAX_SITES}, found {text[:_MAX_SHOWN_NAME]!r}",
            where=span,
            hint="each slot is a site, such as a GPU",
        )
    return int(text)


def _expand(word: str, span: SourceSpan) -> Iterator[str]:
    """The names that a word stands for: `n[08-10]` is n08, n09 and n10."""
    before, bracket, inner = word.partition("[")
    if not bracket:
        yield word
        return
    ranges, _, after = inner.partition("]")
    count = 0
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise MachineError(f"expected numbers of hosts, as in `node[01-04,7]`, found {part[:40]!r}", where=span)
        low, high = int(match[1]), int(match[2] or match[1])
        count += high - low + 1
        if count > MAX_SITES:
            raise MachineError(f"more than {MAX_SITES} hosts", where=span)
        yield from (f"{before}{number:0{len(match[1])}}{after}" for number in range(low, high + 1))


def _read_slurm_list(words: str) -> str | None:
    """What a line of the environment says the hosts are."""
    match = _SLURM.fullmatch(words)
    return match[2] if match is not None and match[1] in _NODE_LISTS else None


def _read_slurm(lines: list[tuple[str, SourceSpan]]) -> tuple[Host, ...]:
    """The hosts of a job of Slurm, with the tasks of each, or the GPUs if the environment says them."""
    values = {match[1]: (match[2], span) for words, span in lines if (match := _SLURM.fullmatch(words)) is not None}
    text, span = next(values[name] for name in _NODE_LISTS if name in values)
    names: list[str] = []
    for word in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        if not re.fullmatch(_HOST_WORD, word):
            raise MachineError(f"expected hosts, as in `node[01-04]`, found {word[:40]!r}", where=span)
        names += _expand(word, span)
        _require_few(dict.fromkeys(names, 1), span)
    counts: list[int] = []
    told = next((values[name] for name in _TASKS if name in values), None)
    for part in [] if told is None else told[0].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,4})\))?", part)
        if told is not None and match is None:
            raise MachineError(f"expected tasks of nodes, as in `8(x4)`, found {part[:40]!r}", where=told[1])
        if match is not None and told is not None:
            counts += [_read_slots(match[1], told[1])] * int(match[2] or 1)
    if len(counts) == 1:
        counts *= len(names)
    if counts and len(counts) != len(names):
        message = f"{len(names)} hosts, and tasks of {len(counts)}"
        raise MachineError(message, where=span if told is None else told[1])
    hosts = dict(zip(names, counts or [0] * len(names), strict=True))
    _require_few(hosts, span)
    return tuple(Host(name, slots) for name, slots in hosts.items())


def _require_few(hosts: dict[str, int], span: SourceSpan) -> None:
    if sum(max(1, slots) for slots in hosts.values()) > MAX_SITES:
        raise MachineError(f"the hosts have more than {MAX_SITES} slots", where=span)


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
