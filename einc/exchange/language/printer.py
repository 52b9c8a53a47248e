"""Exchange programs as canonical text, with explicit sizes and memberships and one action a line; and their parts.

`parse` and `resolve` of the text give the program back, provided that it names no action, site or target twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from einc.exchange.language.program import Action, Aggregate, Holding, Partition, Program, Requirement

_CONTINUED = ";\n     "  # a newline after a semicolon continues the declaration

BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def print_program(program: Program) -> str:
    """The text of a program, ending in a newline."""
    lines = []
    if program.gpus is not None:
        lines.append(f"GPUS: {format_targets(program.gpus)}")
    if program.partitions:
        lines.append(f"PARTITIONS: {' '.join(map(format_partition, program.partitions))}")
    lines.append(f"IN:  {_CONTINUED.join(map(format_holding, program.holdings))}")
    lines.append(f"OUT: {_CONTINUED.join(map(format_requirement, program.requirements))}")
    if program.actions:
        lines.append("")
        lines += map(format_action, program.actions)
    return "\n".join(lines) + "\n"


def format_aggregate(aggregate: Aggregate) -> str:
    return "+".join(aggregate)


def format_size(size: int) -> str:
    """A size in bytes in the largest unit that divides it."""
    unit = next(unit for unit in ("GB", "MB", "KB", "B") if size % BYTE_UNITS[unit] == 0)
    return f"{size // BYTE_UNITS[unit]} {unit}"


def format_targets(targets: Sequence[int | str]) -> str:
    """`0, 2, G1`."""
    return ", ".join(map(str, targets))


def format_partition(partition: Partition) -> str:
    """`G1 {0, 1}`, or `G1 {size 2}` where the membership is open."""
    inner = f"size {partition.size}" if partition.members is None else format_targets(partition.members)
    return f"{partition.name} {{{inner}}}"


def format_holding(holding: Holding) -> str:
    """An IN entry with its size."""
    where = format_targets(holding.sites)
    return f"{format_aggregate(holding.aggregate)} @ {where} (size: {format_size(holding.size)})"


def format_requirement(requirement: Requirement) -> str:
    return f"{format_aggregate(requirement.aggregate)} @ {format_targets(requirement.targets)}"


def format_action(action: Action) -> str:
    """An action with its waits."""
    text = f"{format_aggregate(action.aggregate)} @ {action.source}"
    if action.destinations:
        text += f" {'=>' if action.multicast else '->'} {format_targets(action.destinations)}"
    if action.reads:
        text += f" <= {{{', '.join(f'{format_aggregate(part)} @ {site}' for part, site in action.reads)}}}"
    if action.after:
        text += f" after ({'; '.join(map(format_action, action.after))})"
    return text
