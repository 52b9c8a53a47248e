"""The tables that `rocm-smi --showtopo` prints, with names of `rocm-smi --showproductname` beside them.

The table of link types says of each pair whether xGMI or PCIe joins it, and the table of weights which xGMI pairs are
direct: those of the least weight. How many links a pair has is not in it. Nodes of memory are sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from einc.errors import MachineError, SourceSpan
from einc.machines.catalogue import Gpu, find_by_device, find_by_name
from einc.machines.importers.pcie import Lane, Way
from einc.machines.importers.topology_facts import Topology
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES

_TITLE = re.compile(r"=+ *([A-Z][A-Za-z ]{1,60}?) *=+\s*")
_LINK_TYPES, _WEIGHTS = "Link Type between two GPUs", "Weight between two GPUs"
_GPU_LABEL = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_GPU_FACT = re.compile(r"GPU\[([0-9]{1,4})\]\s*: *(?:\(Topology\) *)?([A-Za-z ]{1,30}?):\s*(\S.{0,80}?)\s*")
_MAX_ROCM_LINES = 20_000
"""More than a thousand GPUs have."""


def is_rocm_table(text: str) -> bool:
    return _LINK_TYPES in text[:200_000]


def read_rocm(text: str, where: str) -> Topology:
    """The topology of the tables. Raises MachineError, pointing at the first line that is wrong."""
    lines = text.splitlines()
    if len(lines) > _MAX_ROCM_LINES:
        raise MachineError(f"more than {_MAX_ROCM_LINES} lines, which is no table of rocm-smi", where=where)
    kinds = _read_table(lines, _LINK_TYPES, where)
    if kinds is None:
        raise MachineError(f"there is no table '{_LINK_TYPES}'", where=where, hint="`rocm-smi --showtopo` prints one")
    weights = _read_table(lines, _WEIGHTS, where) or {}
    count = 1 + max(max(pair) for pair in kinds)
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
        if kind == "XGMI" and weights.get(pair, str(least)) == str(least):
            direct[pair] = 1
        elif kind == "N/A":
            unreachable.add(pair)
    facts = _read_facts(lines)
    models = tuple(_find_model(facts.get(site, {})) for site in range(count))
    names = [facts.get(site, {}).get("card series", "") for site in range(count)]
    notes = ["rocm-smi does not say how many xGMI links a pair has: one each (RCCL's dump says it)"] if direct else []
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


def _find_model(facts: Mapping[str, str]) -> Gpu | None:
    """A model by its series, else by its PCI device id."""
    return find_by_name(facts.get("card series", "")) or find_by_device(facts.get("card model"), None, None)


def _find_sockets(facts: Mapping[int, Mapping[str, str]], count: int) -> tuple[Way, ...]:
    nodes = [facts.get(site, {}).get("numa node", "0") for site in range(count)]
    sockets = sorted(set(nodes))
    between = [[Lane(f"socket {sockets.index(node)}", "socket")] if len(sockets) > 1 else [] for node in nodes]
    return tuple((*lanes, Lane(f"pcie {site}", "slot")) for site, lanes in enumerate(between))
