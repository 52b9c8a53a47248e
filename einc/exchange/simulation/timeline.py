"""What a simulation gives: when each action starts, forms its aggregate, delivers it and ends."""

from __future__ import annotations

from dataclasses import dataclass

from einc.exchange.language.closure import Copy
from einc.exchange.language.program import Action, Aggregate


@dataclass(frozen=True, slots=True)
class ActionEvent:
    """What happened to one action; times in milliseconds from the beginning.

    `parts` are the copies that it combined: the aggregate itself where the source held it whole. `formed` is when the
    aggregation ended (the start, where nothing was combined), `arrivals` when each destination had the aggregate.
    """

    action: Action
    start: float
    parts: tuple[Aggregate, ...]
    formed: float
    arrivals: tuple[tuple[int, float], ...]
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole run: one event per action, in the program's order, and every copy that exists at the end."""

    completion_ms: float
    events: tuple[ActionEvent, ...]
    copies: frozenset[Copy]
