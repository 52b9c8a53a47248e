"""Rates of links that a tool measured: p2pBandwidthLatencyTest of CUDA's samples, nccl-tests and rccl-tests.

The first has a matrix of GB/s for single pairs. The others have what a ring of all GPUs sustains, which says something
of each link only where all are alike. Measured rates replace what was assumed of the resources of a machine.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc.errors import MachineError, SourceSpan, UsageError
from einc.machines.catalogue import find_by_name
from einc.machines.importers.pcie import build_slots
from einc.machines.importers.topology_facts import MAX_REPORT_LINES, Topology
from einc.machines.model import Machine, Pair, Resource
from einc.machines.schema import MAX_SITES

_MATRIX_TITLE = re.compile(
    r"\s*(P2P Connectivity Matrix|(?:Unidirectional|Bidirectional) P2P=Enabled Bandwidth (?:\(P2P Writes\) )?Matrix "
    r"\(GB/s\))\s*"
)
_DEVICE_NAME = re.compile(r"Device: *([0-9]{1,4}), (.{1,80}?), pciBusID: .*")
_RANK_LINE = re.compile(r"# +Rank +([0-9]{1,5}) .{0,200}? device +[0-9]+ \[[0-9a-zA-Z:.x]+\] (.{1,80}?)\s*")
_RESULT = re.compile(r" *([0-9]{1,15}) +[0-9]{1,15} +[a-z0-9_]{2,16} .*")
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_TESTS = "give all that `p2pBandwidthLatencyTest` of CUDA's samples prints, or a test of nccl-tests"
_SLOWER = 0.9
"""A pair that reaches less than this part of what its resources do gets a resource of its own."""


@dataclass(frozen=True, slots=True)
class MeasuredLinks:
    """What a tool says: the names of GPUs, and either the rates of pairs in GB/s, one way and both ways together, with
    the pairs that have peers, or what a ring sustains."""

    names: tuple[str, ...]
    one_way: Mapping[Pair, float]
    both_ways: Mapping[Pair, float]
    peers: frozenset[Pair]
    ring_gbs: float | None = None


def is_measured_links(text: str) -> bool:
    start = text[:200_000]
    return "P2P=Enabled Bandwidth" in start or ("busbw" in start and "algbw" in start)


def read_measured_links(text: str, where: str) -> MeasuredLinks:
    """The rates in the output of a tool. Raises MachineError at the first line that is wrong."""
    lines = text.splitlines()
    if len(lines) > MAX_REPORT_LINES:
        raise MachineError(f"more than {MAX_REPORT_LINES:,} lines, which is no output of a test", where=where)
    if "busbw" in text and "P2P=Enabled" not in text:
        return _read_ring(lines, where)
    names = {int(match[1]): match[2] for line in lines if (match := _DEVICE_NAME.fullmatch(line.strip()))}
    matrices: dict[str, dict[Pair, float]] = {}
    for position, line in enumerate(lines):
        title = _MATRIX_TITLE.fullmatch(line)
        if title is not None:
            matrices.setdefault(title[1].partition(" ")[0], _read_matrix(lines, position + 1, where))
    one_way = matrices.get("Unidirectional")
    if one_way is None:
        raise MachineError("there is no matrix 'Unidirectional P2P=Enabled Bandwidth'", where=where, hint=_TESTS)
    count = 1 + max(max(pair) for pair in one_way)
    for matrix in matrices.values():
        if len(matrix) != len(one_way):
            raise MachineError("its matrices have different numbers of GPUs", where=where, hint=_TESTS)
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    for a, b in pairs:
        if not 1e-3 <= one_way[a, b] <= 1e6:
            raise MachineError(f"GPU {a} to GPU {b} has {one_way[a, b]:g} GB/s, which is no rate", where=where)
    connected = matrices.get("P2P", {})
    return MeasuredLinks(
        tuple(names.get(site, "") for site in range(count)),
        {pair: one_way[pair] for pair in pairs},
        {pair: rate for pair, rate in matrices.get("Bidirectional", {}).items() if pair in set(pairs) and rate > 0},
        frozenset(pair for pair in pairs if connected.get(pair, 1)),
    )


def _read_matrix(lines: Sequence[str], start: int, where: str) -> dict[Pair, float]:
    """The matrix that begins at a line with the numbers of its columns."""
    header = lines[start].split() if start < len(lines) else []
    columns = [word for word in header if word.isdigit()]
    if not columns or len(columns) > MAX_SITES or columns != [str(k) for k in range(len(columns))]:
        raise MachineError("expected a line that numbers the columns from 0", where=f"{where}:{start + 1}")
    matrix: dict[Pair, float] = {}
    for row in range(len(columns)):
        number = start + 1 + row
        line = lines[number] if number < len(lines) else ""
        words = line.split()
        if len(words) != len(columns) + 1 or words[0] != str(row) or not all(re.fullmatch(_NUMBER, w) for w in words):
            span = SourceSpan(where, number + 1, 1, min(len(line), 200) + 1, line[:200])
            raise MachineError(f"expected the row of GPU {row}, with {len(columns)} numbers", where=span)
        matrix |= {(row, column): float(word) for column, word in enumerate(words[1:])}
    return matrix


def _read_ring(lines: Sequence[str], where: str) -> MeasuredLinks:
    """The bus bandwidth of the largest message."""
    header = next((line.lstrip("# ").split() for line in lines if line.startswith("#") and "busbw" in line), None)
    names = {int(match[1]): match[2] for line in lines if (match := _RANK_LINE.fullmatch(line))}
    results = [(int(match[1]), line.split()) for line in lines if (match := _RESULT.fullmatch(line)) is not None]
    if header is None or not results:
        raise MachineError("there is no line of results below `# size count type ... busbw`", where=where, hint=_TESTS)
    if not names or set(names) != set(range(len(names))):
        raise MachineError("expected a line `# Rank 0 ... device 0 [0x07] NAME` for each rank", where=where)
    _, words = max(results, key=lambda result: result[0])
    first = header.index("busbw")
    rates = [words[k] for k, name in enumerate(header) if name == "busbw" and k < len(words)]
    good = [float(word) for word in rates if re.fullmatch(_NUMBER, word) and float(word) > 0]
    if not good:
        raise MachineError(f"expected a rate in column {first + 1} of the largest size", where=where)
    return MeasuredLinks(tuple(names[rank] for rank in range(len(names))), {}, {}, frozenset(), max(good))


def describe_measured(links: MeasuredLinks) -> Topology:
    """The GPUs of a test as a topology, whose links are only known by their rates. Raises UsageError for a ring."""
    if links.ring_gbs is not None:
        raise UsageError(
            "the output of nccl-tests says how fast a ring is, and not what joins the GPUs",
            hint="give it with --rates, and as FILE what `nvidia-smi topo -m` prints",
        )
    count = len(links.names)
    models = tuple(map(find_by_name, links.names))
    return Topology(
        tuple(f"GPU{site}" for site in range(count)), models, {}, (0,) * count, (0,) * count,
        ways=tuple(build_slots(links.names, [None] * count)), staged=frozenset(links.one_way) - links.peers,
        unknown=next((name for name, gpu in zip(links.names, models, strict=True) if gpu is None and name), None),
    )  # fmt: skip


def apply_measured(machine: Machine, links: MeasuredLinks) -> Machine:
    """The machine with measured rates in place of those of its resources. Raises UsageError where they do not fit."""
    count = len(machine.sites)
    if len(links.names) != count:
        raise UsageError(f"the rates are those of {len(links.names)} GPUs, and the machine has {count}")
    if links.ring_gbs is not None:
        return _apply_ring(machine, links.ring_gbs)
    resources = [_measure_resource(resource, links) for resource in machine.resources]
    measured = dataclasses.replace(machine, resources=tuple(resources))
    slower = [
        Resource(f"measured {a}>{b}", gbs, ((a, b),))
        for (a, b), gbs in links.one_way.items()
        if (a, b) in measured.widths and gbs < _SLOWER * measured.widths[a, b]
    ]
    return dataclasses.replace(measured, resources=(*resources, *slower))


def _measure_resource(resource: Resource, links: MeasuredLinks) -> Resource:
    """A resource with the highest rate of its pairs: it carries that, whatever else limits the others."""
    back = {(b, a) for a, b in resource.pairs}
    rates = links.both_ways if back & set(resource.pairs) else links.one_way
    known = [rates[pair] for pair in resource.pairs if pair in rates]
    known = known or [links.one_way[pair] for pair in resource.pairs if pair in links.one_way]
    return dataclasses.replace(resource, gbs=max(known), peak_gbs=None) if known else resource


def _apply_ring(machine: Machine, gbs: float) -> Machine:
    """A ring sends over one link of every GPU at once, so that it tells the rate of links that are all alike."""
    if len({resource.gbs for resource in machine.resources}) != 1:
        raise UsageError(
            "the links of the machine are not all alike, so that a ring does not tell the rate of each",
            hint="p2pBandwidthLatencyTest measures each pair",
        )
    resources = (dataclasses.replace(resource, gbs=gbs, peak_gbs=None) for resource in machine.resources)
    return dataclasses.replace(machine, resources=tuple(resources))
