"""A machine as text: who can talk to whom, how fast, and what they share. Readable from 2 to 100 sites."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from einc.machines.model import Machine, Pair, Resource
from einc_runtime.text import format_count

_MAX_NUMBERED_SITES, _MAX_DRAWN_SITES = 16, 100
"""Up to this many sites the matrix has numbers, if they fit in a line, and up to this many one symbol per pair."""
_MAX_PICTURE_WIDTH = 80
"""Characters of a line of numbers."""
_MARKS = "#*+=-:abcdefgh"
_TINTS = ("32", "36", "33", "35", "34")
"""Colours of the rates, fastest first: green, cyan, yellow, magenta, blue."""
_BUS_ROW = 18  # sites in a line of a shared bus, which fills 80 columns


def draw(machine: Machine, *, colour: bool = False) -> str:
    """The links of a machine, without a newline at the end; with `colour`, escape sequences tint its rates."""
    count = len(machine.sites)
    if count == 1:
        return "links: none, as there is one site"
    speeds = _compute_speeds(machine)
    rates = sorted(set(speeds.values()), reverse=True)
    tints = {rate: _TINTS[min(k, len(_TINTS) - 1)] for k, rate in enumerate(rates)} if colour else {}
    groups = _group_resources(machine.resources)
    names = {base for base, _, _ in groups}
    uniform = len(rates) == 1 and len(speeds) == count * (count - 1)
    if uniform and count <= _MAX_DRAWN_SITES and len(names) == 1 and "link" not in {shape for _, shape, _ in groups}:
        lines = _draw_bus(count, names.pop())
    elif count <= _MAX_NUMBERED_SITES and 4 + count * _compute_width(speeds) <= _MAX_PICTURE_WIDTH:
        lines = _draw_numbers(count, speeds, tints)
    elif count <= _MAX_DRAWN_SITES:
        lines = _draw_symbols(count, speeds, tints)
    else:
        lines = [f"GB/s between two sites: {rates[-1]:g} to {rates[0]:g}"] if rates else []
    lines += _format_legend(groups, tints)
    uneven = [(a, b) for (a, b), rate in speeds.items() if a < b and speeds.get((b, a), rate) != rate]
    if uneven:
        a, b = uneven[0]
        more = f", and {format_count(len(uneven) - 1, 'more pair')}" if len(uneven) > 1 else ""
        lines.append(f"not alike both ways: {a}>{b} {speeds[a, b]:g} GB/s, {b}>{a} {speeds[b, a]:g} GB/s{more}")
    apart = sum((a, b) not in speeds for a in range(count) for b in range(a))
    if apart:
        lines.append(f"{format_count(apart, 'pair')} of sites without a direct link")
    return "\n".join(lines)


def format_ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _compute_speeds(machine: Machine) -> dict[Pair, float]:
    """GB/s of each pair alone: the least of what it crosses."""
    speeds: dict[Pair, float] = {}
    for resource in machine.resources:
        for pair in resource.pairs:
            speeds[pair] = min(resource.gbs, speeds.get(pair, resource.gbs))
    return speeds


def _group_resources(resources: Iterable[Resource]) -> dict[tuple[str, str, float], list[Resource]]:
    """Resources of one kind: by their name without its sites, the shape of their pairs, and their rate."""
    groups: dict[tuple[str, str, float], list[Resource]] = {}
    for resource in resources:
        if len(resource.pairs) == 1:
            shape = "link"
        elif len({a for a, _ in resource.pairs}) == 1:
            shape = "out of"
        elif len({b for _, b in resource.pairs}) == 1:
            shape = "into"
        else:
            listed = set(resource.pairs)
            shape = "one way" if all((b, a) not in listed for a, b in listed) else "shared"
        base = re.sub(r" (?:(?:out|in) \d+|\d+>\d+)$", "", resource.name)
        groups.setdefault((base, shape, resource.gbs), []).append(resource)
    return groups


def _draw_bus(count: int, name: str) -> list[str]:
    """All sites on one bus, drawn in rows."""
    lines = [f"{name} joins all sites:"]
    for start in range(0, count, _BUS_ROW):
        row = range(start, min(start + _BUS_ROW, count))
        lines += ["".join(f"{site:>4}" for site in row), "   |" * len(row), "  =" + "+===" * (len(row) - 1) + "+="]
    return lines


def _compute_width(speeds: Mapping[Pair, float]) -> int:
    """The width of a column of rates."""
    return max((len(f"{rate:g}") for rate in speeds.values()), default=1) + 2


def _draw_numbers(count: int, speeds: Mapping[Pair, float], tints: Mapping[float, str]) -> list[str]:
    width = _compute_width(speeds)
    lines = ["GB/s from row to column:", "    " + "".join(f"{b:>{width}}" for b in range(count))]
    for a in range(count):
        row = f"{a:>4}"
        for b in range(count):
            rate = speeds.get((a, b))
            empty = "." if a == b else "-"
            row += f"{empty:>{width}}" if rate is None else _paint(f"{rate:>{width}g}", rate, tints)
        lines.append(row)
    return lines


def _draw_symbols(count: int, speeds: Mapping[Pair, float], tints: Mapping[float, str]) -> list[str]:
    rates = sorted(set(speeds.values()), reverse=True)
    marks = {rate: _MARKS[min(k, len(_MARKS) - 1)] for k, rate in enumerate(rates)}
    legend = [_paint(f"{marks[rate]} {rate:g}", rate, tints) for rate in rates[: len(_MARKS)]]
    if len(rates) > len(_MARKS):
        legend.append(f"{_MARKS[-1]} below that")
    lines = [
        f"GB/s from row to column: {', '.join(legend)}",
        "     " + "".join(str(b // 10) if b % 10 == 0 else " " for b in range(count)),
        "     " + "".join(str(b % 10) for b in range(count)),
    ]
    for a in range(count):
        row = f"{a:>4} "
        for b in range(count):
            rate = speeds.get((a, b))
            empty = "\\" if a == b else " "
            row += empty if rate is None else _paint(marks[rate], rate, tints)
        lines.append(row.rstrip())
    return lines


def _format_legend(groups: Mapping[tuple[str, str, float], list[Resource]], tints: Mapping[float, str]) -> list[str]:
    """A line for each group; the two halves of a switch share a line if their rates are equal."""
    lines = []
    done: set[tuple[str, str, float]] = set()
    for (base, shape, gbs), members in groups.items():
        if (base, shape, gbs) in done:
            continue
        rate = _paint(f"{gbs:g} GB/s", gbs, tints)
        match shape:
            case "link":
                lines.append(f"{base}: {rate}, {format_count(len(members), 'link')} in one direction each")
            case "shared" | "one way":
                pairs = " and ".join(format_count(number, "pair") for number in sorted({len(r.pairs) for r in members}))
                paths = "one path" if len(members) == 1 else f"{len(members)} paths"
                ways = (
                    "both directions together"
                    if shape == "shared"
                    else "in one direction" + " each" * (len(members) > 1)
                )
                lines.append(f"{base}: {rate}, {paths} that {pairs} share, {ways}")
            case _:
                end = 0 if shape == "out of" else 1
                sites = format_ranges(resource.pairs[0][end] for resource in members)
                opposite = (base, "into", gbs)
                if shape == "out of" and format_ranges(r.pairs[0][1] for r in groups.get(opposite, ())) == sites:
                    done.add(opposite)
                    shape = "out of, and as much into,"
                lines.append(f"{base}: {rate} {shape} each of the sites {sites}")
    return lines


def _paint(text: str, rate: float, tints: Mapping[float, str]) -> str:
    return f"\x1b[{tints[rate]}m{text}\x1b[0m" if rate in tints else text
