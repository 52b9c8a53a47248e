"""The words of an exchange program as text: aggregates, sizes, actions, requirements."""

from __future__ import annotations

from collections.abc import Sequence

from einc.exchange.language.program import Action, Aggregate, Holding, Partition, Requirement

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def aggregate_text(aggregate: Aggregate) -> str:
    """`A+B+C`."""
    return "+".join(aggregate)


def size_text(size: int) -> str:
    """A size in bytes in the largest unit that divides it."""
    unit = next(unit for unit in ("GB", "MB", "KB", "B") if size % UNITS[unit] == 0)
    return f"{size // UNITS[unit]} {unit}"


def targets_text(targets: Sequence[int | str]) -> str:
    """`0, 2, G1`."""
    return ", ".join(map(str, targets))


def partition_text(partition: Partition) -> str:
    """`G1 {0, 1}`, or `G1 {size 2}` where the membership is open."""
    inner = f"size {partition.size}" if partition.members is None else targets_text(partition.members)
    return f"{partition.name} {{{inner}}}"


def holding_text(holding: Holding) -> str:
    """An IN entry with its size."""
    where = targets_text(holding.sites)
    return f"{aggregate_text(holding.aggregate)} @ {where} (size: {size_text(holding.size)})"


def requirement_text(requirement: Requirement) -> str:
    """An OUT entry."""
    return f"{aggregate_text(requirement.aggregate)} @ {targets_text(requirement.targets)}"


def action_text(action: Action) -> str:
    """An action with its waits."""
    text = f"{aggregate_text(action.aggregate)} @ {action.source}"
    if action.destinations:
        text += f" -> {targets_text(action.destinations)}"
    if action.after:
        text += f" after ({'; '.join(map(action_text, action.after))})"
    return text
