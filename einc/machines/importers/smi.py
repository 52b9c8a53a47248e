"""The table that `nvidia-smi topo -m` prints, of any driver version, with whatever text stands around it.

A header line names columns: GPUs first, then network cards, then affinities. A row names its GPU, then holds one word
per column: `X`, `NV4` (bonded NVLinks) or how far the PCIe path goes. Rows of network cards, the legend, colours and
shell prompts are ignored; `nvidia-smi -L` or the table of plain `nvidia-smi`, above or below the matrix, names the
models. The table of `nvidia-smi topo -p2p r`, if it follows, says which pairs reach each other's memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einc.errors import MachineError, SourceSpan
from einc.machines.catalogue import Gpu, find_by_name
from einc.machines.importers.pcie import DISTANCES, Way, group_by_distance
from einc.machines.importers.topology_facts import MAX_REPORT_LINES, Topology
from einc.machines.model import Pair
from einc.machines.schema import MAX_SITES
from einc_runtime.text import replace_unprintable

_PCIE = frozenset((*DISTANCES, "SYS", "SOC"))
"""Ways over PCIe; SOC is a word of older drivers for SYS."""
_NO_PATH = frozenset(("N/A",))
_NVLINK = re.compile(r"NV([1-9][0-9]?)")
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,3})")
_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
_GPU_MODEL = re.compile(
    r"\s*GPU ([0-9]{1,4}): (.{1,80}?) \(UUID|\|\s+([0-9]{1,4})\s{1,3}((?:NVIDIA|Tesla|GeForce|Quadro)\s.{1,60}?)\s{2,}"
)
_PEER_WORDS = frozenset(("OK", "NS", "CNS", "GNS", "TNS", "DR", "U"))
"""Words of `nvidia-smi topo -p2p`: all but OK say that the driver gives a pair no peers, or does not know."""
_MAX_COLUMNS = 4 * MAX_SITES
_MAX_LINE_WORDS = _MAX_COLUMNS + 2  # words of a line that are read: its name, its columns, and one word too many
_MAX_CARDS = 64  # network cards that tell how far GPUs with NVLinks are from each other


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    column: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A line without its escape sequences, its first words; `number` counts from 1."""

    text: str
    number: int
    words: tuple[_Word, ...]

    def span(self, where: str, word: int) -> SourceSpan:
        """The word at a position, or the end of the line."""
        if word < len(self.words):
            start, width = self.words[word].column, len(self.words[word].text)
        else:
            start, width = len(self.text.rstrip()), 1
        return SourceSpan(where, self.number, start + 1, start + width + 1, self.text.rstrip())


def read_smi(text: str, where: str) -> Topology:
    """The topology of a matrix. Raises MachineError, pointing at the first word that is wrong."""
    texts = text.splitlines()
    if len(texts) > MAX_REPORT_LINES:
        raise MachineError(f"more than {MAX_REPORT_LINES:,} lines, which is no topology table", where=where)
    lines, peer_tables = _take_peer_tables([_split_line(line, number) for number, line in enumerate(texts, 1)], where)
    position = _find_header(lines)
    if position is None:
        raise MachineError(
            "there is no topology table: a line that names GPU0 GPU1 ... and below it a row for each",
            where=where,
            hint="`nvidia-smi topo -m > topo.txt` prints one; NCCL writes NCCL_TOPO_DUMP_FILE=topo.xml",
        )
    columns = _read_columns(lines[position], where)
    rows = _read_rows(lines[position + 1 :], columns, where)
    labels = [name for name in columns if _GPU.fullmatch(name)]
    word_of_column = {name: 1 + position for position, name in enumerate(columns)}
    cells = {(a, b): rows[a].words[word_of_column[b]].text for a in labels for b in columns}
    number = {label: site for site, label in enumerate(labels)}
    direct: dict[Pair, int] = {}
    unreachable: set[Pair] = set()
    for a, b in itertools.permutations(labels, 2):
        cell = cells[a, b]
        if cell != cells[b, a]:
            raise MachineError(
                f"{a} to {b} is {cell}, but {b} to {a} is {cells[b, a]}: a link is the same from both ends",
                where=rows[a].span(where, word_of_column[b]),
                hint="the table is damaged, or a link is down: `nvidia-smi nvlink -s` shows the state of each",
            )
        if links := _NVLINK.fullmatch(cell):
            direct[number[a], number[b]] = int(links[1])
        elif cell in _NO_PATH:
            unreachable.add((number[a], number[b]))
    models, unknown = _find_models(lines, labels)
    return Topology(
        tuple(labels),
        models,
        direct,
        (0,) * len(labels),
        (0,) * len(labels),
        counts_switches=True,
        ways=tuple(_find_ways(labels, columns, cells, rows)),
        unreachable=frozenset(unreachable),
        staged=_read_staged(peer_tables, number),
        unknown=unknown,
    )


def _find_ways(
    labels: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], str], rows: Mapping[str, _Line]
) -> list[Way]:
    """The ways over PCIe that the words of the table tell.

    Of GPUs with NVLinks it shows these instead: then the network card tells that is nearest to both, or the same
    affinity, that they are in one socket.
    """
    number = {name: position for position, name in enumerate(labels)}
    cards = [name for name in columns if name not in number][:_MAX_CARDS]
    affinity = {label: tuple(word.text for word in rows[label].words[1 + len(columns) :]) for label in labels}
    near = {}
    for a, b in itertools.combinations(labels, 2):
        word = cells[a, b]
        if _NVLINK.fullmatch(word):
            to_cards = [(cells[a, card], cells[b, card]) for card in cards]
            ranks = [max(map(DISTANCES.index, ends)) for ends in to_cards if set(ends) <= set(DISTANCES)]
            same_socket = "NODE" if affinity[a] and affinity[a] == affinity[b] else "SYS"
            word = DISTANCES[min(ranks)] if ranks else same_socket
        near[number[a], number[b]] = word
    return group_by_distance(len(labels), near)


def _take_peer_tables(lines: Sequence[_Line], where: str) -> tuple[list[_Line], list[list[_Line]]]:
    """The lines without the tables of `topo -p2p`, and these: each is its header and its rows."""
    remaining: list[_Line] = []
    tables: list[list[_Line]] = []
    position = 0
    while position < len(lines):
        header = lines[position]
        names = [word.text for word in header.words]
        count = len(names)
        rows = [line for line in lines[position + 1 : position + 1 + 2 * count] if line.words][:count]
        if names and all(_GPU.fullmatch(name) for name in names) and _is_peer_row(rows, names):
            if [row.words[0].text for row in rows] != names or not all(_is_peer_row([row], names) for row in rows):
                raise MachineError(
                    "the table of `nvidia-smi topo -p2p` is not whole", where=header.span(where, 0),
                    hint="each GPU of its first line has a row, with OK or another word for each GPU",
                )  # fmt: skip
            tables.append([header, *rows])
            position = lines.index(rows[-1], position) + 1
        else:
            remaining.append(header)
            position += 1
    return remaining, tables


def _is_peer_row(rows: Sequence[_Line], names: Sequence[str]) -> bool:
    """Whether the first of the rows has a word about peers for each name, and not X alone."""
    if not rows or len(names) < 2:
        return False
    words = [word.text for word in rows[0].words[1:]]
    return len(words) == len(names) and set(words) <= {"X", *_PEER_WORDS} and set(words) != {"X"}


def _read_staged(tables: Sequence[Sequence[_Line]], number: Mapping[str, int]) -> frozenset[Pair] | None:
    """The pairs that have no peers by any table, in either direction; None without a table."""
    if not tables:
        return None
    staged: set[Pair] = set()
    for header, *rows in tables:
        names = [word.text for word in header.words]
        for row in rows:
            for name, word in zip(names, row.words[1:], strict=True):
                a, b = number.get(row.words[0].text), number.get(name)
                if word.text not in ("X", "OK") and a is not None and b is not None:
                    staged |= {(a, b), (b, a)}
    return frozenset(staged)


def _split_line(text: str, number: int) -> _Line:
    clean = _ESCAPE.sub("", text).replace("\t", "    ")
    if not clean.isprintable():
        clean = replace_unprintable(clean, " ")
    words = itertools.islice(re.finditer(r"\S+", clean), _MAX_LINE_WORDS)
    return _Line(clean, number, tuple(_Word(match[0], match.start()) for match in words))


def _find_header(lines: Sequence[_Line]) -> int | None:
    """The position of the header: its first word is a GPU, its second is no link, and a row of a GPU follows it.

    If no row follows any such line, the first of them counts, so that an error can say what is missing.
    """
    filled = [
        (k, line.words[0].text, line.words[1].text if line.words[1:] else "")
        for k, line in enumerate(lines)
        if line.words
    ]
    maybe = None
    for (k, first, second), below in itertools.zip_longest(filled, filled[1:], fillvalue=(0, "", "")):
        if _GPU.fullmatch(first) and not _is_cell(second):
            if _GPU.fullmatch(below[1]) and _is_cell(below[2]):
                return k
            maybe = k if maybe is None else maybe
    return maybe


def _is_cell(text: str) -> bool:
    return text == "X" or text in _PCIE or text in _NO_PATH or _NVLINK.fullmatch(text) is not None


def _read_columns(header: _Line, where: str) -> list[str]:
    """The devices that have a column each; what follows them (affinities) has a word or none in each row."""
    names: dict[str, None] = {}
    for position, word in enumerate(header.words):
        if word.text in ("CPU", "NUMA", "GPU"):
            break
        if word.text in names:
            raise MachineError(f"the column {word.text[:40]} is there twice", where=header.span(where, position))
        names[word.text] = None
        if len(names) > _MAX_COLUMNS:
            raise MachineError(f"the table has more than {_MAX_COLUMNS} columns", where=f"{where}:{header.number}")
    if sum(_GPU.fullmatch(name) is not None for name in names) > MAX_SITES:
        raise MachineError(f"the table has more than {MAX_SITES} GPUs", where=f"{where}:{header.number}")
    return list(names)


def _read_rows(lines: Sequence[_Line], columns: Sequence[str], where: str) -> Mapping[str, _Line]:
    """For every GPU its row, in which each device column holds a word that a table may hold."""
    rows: dict[str, _Line] = {}
    known = frozenset(columns)
    for line in lines:
        if not line.words:
            continue
        first = line.words[0].text
        if first.rstrip(":") == "Legend":
            break
        if _GPU.fullmatch(first) is None:
            continue
        if first not in known:
            raise MachineError(f"the row {first} has no column of its name", where=line.span(where, 0))
        if first in rows:
            raise MachineError(
                f"{first} has a second row", where=line.span(where, 0), hint="give one table at a time, of one computer"
            )
        _check_row(line, first, columns, where)
        rows[first] = line
    missing = [name for name in columns if _GPU.fullmatch(name) and name not in rows]
    if missing:
        end = f"{where}:{lines[-1].number if lines else 1}"
        more = f" (and those of {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise MachineError(f"the table ends before the row of {missing[0]}{more}", where=end)
    return rows


def _check_row(line: _Line, label: str, columns: Sequence[str], where: str) -> None:
    cells = [word.text for word in line.words[1:]]
    for position, column in enumerate(columns):
        at = line.span(where, 1 + position)
        counts = f"the row of {label} should have {len(columns)} columns of links"
        if position >= len(cells):
            raise MachineError(f"{counts}, and has {len(cells)}: {column} is missing", where=at)
        cell = cells[position]
        if not _is_cell(cell):
            if re.fullmatch(r"[0-9][0-9,-]*", cell) and position:
                raise MachineError(f"{counts}, and has {position}: {column} is missing", where=at)
            peers = cell in ("OK", "NS", "CNS", "GNS", "TNS", "DR", "U")
            raise MachineError(
                f"{label} to {column} is {cell[:40]!r}, which is no kind of link",
                where=at,
                hint="this is of `nvidia-smi topo -p2p`: use `nvidia-smi topo -m`"
                if peers
                else "known: X, NV1 to NV99, PIX, PXB, PHB, NODE, SYS, N/A",
            )
        if (cell == "X") != (column == label):
            mistake = "is X, which stands for itself" if cell == "X" else f"is {cell}, and should be X"
            raise MachineError(f"{label} to {column} {mistake}", where=at)
    if len(cells) > len(columns) and (_is_cell(cells[len(columns)]) and cells[len(columns)] != "N/A"):
        at = line.span(where, 1 + len(columns))
        raise MachineError(f"{counts}, and has more", where=at)


def _find_models(lines: Sequence[_Line], labels: Sequence[str]) -> tuple[tuple[Gpu | None, ...], str | None]:
    """The models that lists of GPUs above or below the table name, and a name that the catalogue has not."""
    named: dict[str, Gpu | None] = {}
    unknown = None
    for line in lines:
        match = _GPU_MODEL.match(line.text)
        if match is not None:
            label, name = f"GPU{int(match[1] or match[3])}", match[2] or match[4]
            named[label] = find_by_name(name)
            if label in labels and named[label] is None and not name.endswith("..."):
                unknown = name
    return tuple(named.get(label) for label in labels), unknown
