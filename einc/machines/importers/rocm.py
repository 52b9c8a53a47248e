"""The tables of `rocm-smi --showtopo`, with what `--showproductname`, `--shownodesbw` and `--showmeminfo vram` say.

The table of link types says of each pair whether xGMI or PCIe joins it. That of bandwidths says how many links a pair
has: its most is so many times its least (`50000-200000` are four), and `0-0` pairs have none. Where it is missing or
knows no pair, the xGMI pairs of the least weight have a link each. Nodes of memory are sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from einc.errors import MachineError, SourceSpan
from einc.machines.catalogue import Gpu, find_by_device, find_by_name
from einc.machines.importers.pcie import Lane, Way
from einc.machines.importers.topology_facts import MAX_REPORT_LINES, Topology
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES

_TITLE = re.compile(r"=+ *([A-Z][A-Za-z ]{1,60}?) *=+\s*")
_LINK_TYPES, _WEIGHTS, _BANDWIDTHS = "Link Type between two GPUs", "Weight between two GPUs", "Bandwidth"
_LEAST_TO_MOST = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_GPU_LABEL = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_GPU_FACT = re.compile(
    r"GPU ?\[?([0-9]{1,4})\]?\s*: *(?:\(Topology\) *)?([A-Za-z ]{1,30}?(?: \(B\))?):\s*(\S.{0,80}?)\s*"
)
UNTOLD_LINKS = "rocm-smi does not say how many xGMI links a pair has: one each (`--shownodesbw`, RCCL's dump say it)"
_LEAST_SHARE_OF_MEMORY = 0.9
"""A GPU with less than this part of its model's memory is a part of one: partitions have half or less."""


def is_rocm_table(text: str) -> bool:
    return _LINK_TYPES in text[:200_000]


def read_rocm(text: str, where: str) -> Topology:
    """The topology of the tables. Raises MachineError, pointing at the first line that is wrong."""
    lines = text.splitlines()
    if len(lines) > MAX_REPORT_LINES:
        raise MachineError(f"more than {MAX_REPORT_LINES:,} lines, which is no table of rocm-smi", where=where)
    kinds = _read_table(lines, _LINK_TYPES, where)
    if kinds is None:
        raise MachineError(f"there is no table '{_LINK_TYPES}'", where=where, hint="`rocm-smi --showtopo` prints one")
    weights = _read_table(lines, _WEIGHTS, where) or {}
    count = 1 + max(max(pair) for pair in kinds)
    counts = count_links(text, where)
    direct: dict[Pair, int] = {}
    unreachable: set[Pair] = set()
    least = min((int(w) for pair, w in weights.items() if kinds.get(pair) == "XGMI" and w.isdigit()), default=0)
    for pair, kind in kinds.items():
        if pair[0] == pair[1]:
            continue
        if kind not in ("XGMI", "PCIE", "N/A"):
            raise MachineError(
                f"GPU{pair[0]} to GPU{pair[1]} is {kind[:40]!r}, which is no type of link", where=where,
                hint="known: XGMI, PCIE",
            )  # fmt: skip
        if kinds[pair[1], pair[0]] != kind:
            raise MachineError(f"GPU{pair[0]} to GPU{pair[1]} is {kind}, but not back", where=where)
        if kind == "XGMI" and counts:
            direct |= {pair: counts[pair]} if counts.get(pair) else {}
        elif kind == "XGMI" and weights.get(pair, str(least)) == str(least):
            direct[pair] = 1
        elif kind == "N/A":
            unreachable.add(pair)
    facts = _read_facts(lines)
    models = tuple(_find_model(facts.get(site, {}), site, where) for site in range(count))
    names = [facts.get(site, {}).get("card series", "") for site in range(count)]
    notes = [UNTOLD_LINKS] if direct and not counts else []
    return Topology(
        tuple(f"GPU{site}" for site in range(count)),
        models,
        direct,
        (0,) * count,
        (0,) * count,
        ways=_find_sockets(facts, count),
        unreachable=frozenset(unreachable),
        notes=tuple(notes),
        unknown=next((name for name, gpu in zip(names, models, strict=True) if gpu is None and name), None),
    )


def count_links(text: str, where: str) -> Mapping[Pair, int]:
    """How many xGMI links each pair has by the table of bandwidths, 0 where none; empty where it does not tell."""
    cells = _read_table(text.splitlines(), _BANDWIDTHS, where) or {}
    counts: dict[Pair, int] = {}
    for pair, cell in cells.items():
        match = _LEAST_TO_MOST.fullmatch(cell)
        if match is not None:
            least, most = int(match[1]), int(match[2])
            if (least > 0) != (most > 0) or (least and most % least) or least > most:
                message = f"GPU{pair[0]} to GPU{pair[1]} has the bandwidth {cell}, which is no whole number of links"
                raise MachineError(message, where=where)
            counts[pair] = most // least if least else 0
    for (a, b), count in counts.items():
        if counts.get((b, a)) != count:
            raise MachineError(f"GPU{a} to GPU{b} has {count} xGMI links, but not back", where=where)
    return counts if any(counts.values()) else {}


def _read_table(lines: Sequence[str], title: str, where: str) -> dict[Pair, str] | None:
    """The cells of the table with a title, by pair; None where there is none."""
    start = next((k for k, line in enumerate(lines) if (m := _TITLE.fullmatch(line)) and m[1] == title), None)
    if start is None:
        return None
    header: list[int] | None = None
    cells: dict[Pair, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if _TITLE.fullmatch(line) or (header and len(cells) == len(header) ** 2):
            break
        if not words:
            continue
        span = SourceSpan(where, number, 1, min(len(line), 200) + 1, line[:200])
        if header is None:
            if not all(_GPU_LABEL.fullmatch(word) for word in words[: MAX_SITES + 1]) or len(words) > MAX_SITES:
                raise MachineError("expected a line that names GPU0, GPU1, ...", where=span)
            header = [int(word[3:]) for word in words]
            if header != list(range(len(header))):
                raise MachineError("expected GPU0, GPU1, ... in this order", where=span)
            continue
        row = len(cells) // len(header)
        if words[0] != f"GPU{row}" or len(words) != len(header) + 1:
            raise MachineError(f"expected the row of GPU{row}, with {len(header)} columns", where=span)
        cells |= {(row, column): word for column, word in enumerate(words[1:])}
    if header is None or len(cells) < len(header) ** 2:
        raise MachineError(f"the table '{title}' ends before its last row", where=f"{where}:{start + 1}")
    return cells


def _read_facts(lines: Sequence[str]) -> Mapping[int, Mapping[str, str]]:
    """What lines as `GPU[0] : Card Series: AMD Instinct MI300X` say of each GPU, by a name in lower case."""
    facts: dict[int, dict[str, str]] = {}
    for line in lines:
        match = _GPU_FACT.fullmatch(line.replace("\t", " ").strip())
        if match is not None:
            facts.setdefault(int(match[1]), {})[match[2].strip().lower()] = match[3]
    return facts


def _find_model(facts: Mapping[str, str], site: int, where: str) -> Gpu | None:
    """A model by its series, alone or in brackets behind that of its chip, else by its PCI device id; with the memory
    that the tool says. Raises MachineError for a part of a GPU."""
    series = facts.get("card series", "")
    bracket = re.fullmatch(r".{1,40}\[(.{1,40})\]", series)
    model = find_by_name(bracket[1] if bracket else series) or next(
        (gpu for device in (series, facts.get("card model")) if (gpu := find_by_device(device, None, None))), None
    )
    memory = facts.get("vram total memory (b)", "")
    if model is None or not re.fullmatch(r"[0-9]{9,13}", memory):
        return model
    memory_mib = int(memory) >> 20
    if memory_mib < _LEAST_SHARE_OF_MEMORY * model.memory_mib:
        raise MachineError(
            f"GPU{site} has {memory_mib} MiB, and {model.name} has {model.memory_mib}: it is a part of one",
            where=where, hint="partitions of GPUs (CPX, NPS4) are not known: write a machine file",
        )  # fmt: skip
    return msgspec.structs.replace(model, memory_mib=memory_mib)


def _find_sockets(facts: Mapping[int, Mapping[str, str]], count: int) -> tuple[Way, ...]:
    nodes = [facts.get(site, {}).get("numa node", "0") for site in range(count)]
    sockets = sorted(set(nodes))
    between = [[Lane(f"socket {sockets.index(node)}", "socket")] if len(sockets) > 1 else [] for node in nodes]
    return tuple((*lanes, Lane(f"pcie {site}", "slot")) for site, lanes in enumerate(between))
