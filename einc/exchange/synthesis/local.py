"""Local search over small bodies: rewrites proposed at random, costed by the simulator, kept where they are faster."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from einc.errors import ProgramError
from einc.exchange.language.program import Program
from einc.exchange.simulation.simulator import BodyEvaluator
from einc.exchange.synthesis.rewrites import REWRITES
from einc.machines.model import Machine

MOST_ACTIONS = 80
"""Larger bodies have too many neighbours for single rewrites to find their way."""


def improve(
    program: Program, machine: Machine, seed: int, iterations: int, stop: Callable[[], bool]
) -> Iterator[Program]:
    """Ever faster bodies; `iterations` are candidates costed.

    From time to time a rewrite that makes the body no slower is followed, and now and then two rewrites at once are
    tried, as many good moves need two steps.
    """
    evaluator = BodyEvaluator(program, machine)
    chance = random.Random(seed)
    best_ms = evaluator.completion(program.actions)
    now, now_ms = program, best_ms
    left = iterations
    names = sorted(REWRITES)
    while left > 0 and not stop():
        left -= 1
        candidate = now
        for _ in range(chance.choice((1, 1, 2))):
            neighbours = list(REWRITES[chance.choice(names)](candidate, machine))
            if neighbours:
                candidate = chance.choice(neighbours)
        if candidate is now or len(candidate.actions) > MOST_ACTIONS:
            continue
        try:
            taken = evaluator.completion(candidate.actions, now_ms * (1 + 1e-9))
        except ProgramError:
            continue
        if math.isfinite(taken):
            now, now_ms = candidate, taken
            if taken < best_ms * (1 - 1e-9):
                best_ms = taken
                yield candidate
