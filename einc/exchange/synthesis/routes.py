"""Routes: how one piece of a demand travels, as steps over sites, apart from any names or times.

A step forms or sends a *part set*, a bit mask over the parts of the demand's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from einc.exchange.synthesis.demands import Shape


class Step(NamedTuple):
    """Send `parts` from `source` to `destination`; where they are equal, form it there of the sets in `of`."""

    parts: int
    source: int
    destination: int
    of: tuple[int, ...] = ()


Route = tuple[Step, ...]
"""Steps in an order in which each finds what it needs, each copy arriving once, every copy needed."""


@lru_cache(maxsize=1 << 14)
def tidy(shape: Shape, steps: tuple[Step, ...]) -> Route | None:
    """The steps as a route: reordered, without those that bring what is there or what nobody needs.

    None where they do not meet the shape's targets. Prices that change little lead to the same steps again and again.
    """
    held = {(1 << part, site) for part, sites in enumerate(shape.holders) for site in sites}
    waiting = list(dict.fromkeys(steps))
    fired: list[Step] = []
    while waiting:
        later = []
        before = len(fired)
        for step in waiting:
            if all(copy in held for copy in needs(step)):
                if (step.parts, step.destination) not in held:
                    held.add((step.parts, step.destination))
                    fired.append(step)
            else:
                later.append(step)
        if len(fired) == before and len(later) == len(waiting):
            break
        waiting = later
    full = (1 << len(shape.holders)) - 1
    wanted = {(full, site) for site in shape.targets}
    if not wanted <= held:
        return None
    kept: list[Step] = []
    for step in reversed(fired):
        if (step.parts, step.destination) in wanted:
            kept.append(step)
            wanted.update(needs(step))
    return tuple(reversed(kept))


def needs(step: Step) -> Sequence[tuple[int, int]]:
    """The copies that a step needs, as (part set, site)."""
    return [(part, step.source) for part in step.of or (step.parts,)]
