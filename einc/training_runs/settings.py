"""What a training run is asked to do, and the learning rate of each of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MAX_TRAINING_STEPS = 10**8 - 1
"""Steps of a run, which the names of checkpoints can count."""

ScheduleName = Literal["constant", "cosine"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`steps` steps with the learning rate `rate`, which rises evenly over the first `warmup` steps.

    Then it stays, or falls to `floor` times itself along half a period of the cosine. `seed` decides which samples each
    step gets. Every `evaluate_every` steps (0: never), the mean loss of `evaluate_batches` held-out batches is taken;
    every `checkpoint_every` (0: only at the end), a checkpoint is written, of which the last `keep` stay. A step is
    `accumulate` runs of the plan, each with a part of its samples.
    """

    steps: int
    rate: float
    schedule: ScheduleName = "constant"
    warmup: int = 0
    floor: float = 0.1
    seed: int = 0
    evaluate_every: int = 0
    evaluate_batches: int = 8
    checkpoint_every: int = 0
    keep: int = 2
    accumulate: int = 1


def find_rate(settings: RunSettings, step: int) -> float:
    """The learning rate of a step, which counts from 1."""
    if step <= settings.warmup:
        return settings.rate * step / settings.warmup
    if settings.schedule == "constant":
        return settings.rate
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
