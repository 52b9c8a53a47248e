"""Why an aggregate cannot be formed, or never arrives, in words that name atoms and sites."""

from __future__ import annotations

from collections.abc import Sequence

from einc.exchange.language.program import Aggregate, Program
from einc.exchange.language.state import State
from einc.exchange.language.words import aggregate_text

_SHOWN = 6


def why_absent(program: Program, state: State, aggregate: Aggregate, site: int) -> str:
    """Why a requirement is not met by the closure `state`."""
    if state.can_form(aggregate, site):
        parts = state.coverage(aggregate, site).parts
        return f"its parts are there ({_names(parts)}), but no action combines them at site {site}"
    return why_not_formed(program, state, aggregate, site)


def why_not_formed(program: Program, state: State, aggregate: Aggregate, site: int) -> str:
    """Why no disjoint copies at `site` partition the aggregate, in the closure `state`."""
    given = {atom for holding in program.holdings for atom in holding.aggregate}
    unknown = [atom for atom in aggregate if atom not in given]
    if unknown:
        return f"IN holds no {_list(unknown, 'or')}"
    missing, _, parts = state.coverage(aggregate, site)
    if not missing:
        clash = _clash(parts)
        return (
            f"only overlapping aggregates are at site {site} ({_names(parts)}), and combining them would count "
            f"{clash} twice"
        )
    lost = [atom for atom in aggregate if atom in missing]
    inside = sorted(
        held
        for held, where in state.copies
        if where == site and not missing.isdisjoint(held) and not set(held).issubset(aggregate)
    )
    reason = f"site {site} never holds {_list(lost, 'or')}"
    if inside:
        reason += f" apart from what is mixed into {_names(inside)}"
    return reason


def _clash(parts: Sequence[Aggregate]) -> str:
    """An atom that two of the parts share; a whole part inside another tells less, so it comes last."""
    seen: dict[str, int] = {}
    for part in parts:
        for atom in part:
            seen[atom] = seen.get(atom, 0) + 1
    shared = sorted(atom for atom, count in seen.items() if count > 1)
    return _list(shared, "or") if shared else "an atom"


def _names(aggregates: Sequence[Aggregate]) -> str:
    return _list([aggregate_text(aggregate)[:80] for aggregate in aggregates], "and")


def _list(words: Sequence[str], last: str) -> str:
    if len(words) > _SHOWN:
        return f"{', '.join(words[:_SHOWN])} {last} {len(words) - _SHOWN} more"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
