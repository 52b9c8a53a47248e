"""One run of the plan of a training step, and losses that change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from einc.training.control import CHANGES, SHARE
from einc.training.steps import LEARNING_RATE, STEP
from einc_runtime.errors import ArrayFault
from einc_runtime.execution.session import Session
from einc_runtime.plan.states import is_weight

SCALARS = (LEARNING_RATE, STEP, SHARE, CHANGES)
"""The inputs of a training step that are no data; not every step has all of them."""


def list_data_inputs(session: Session) -> list[str]:
    """The names of the inputs that are data. Raises ArrayFault for a plan that is no training step."""
    names = [tensor.name for tensor in session.inputs]
    if LEARNING_RATE not in names:
        raise ArrayFault("the plan is no training step", hint='compile(model, train="loss", optimizer="adamw")')
    return [name for name in names if name not in SCALARS]


def run_part(
    session: Session, arrays: Mapping[str, Any], step: int, rate: float, *, share: float = 1.0, changes: bool = True
) -> float:
    """Runs a step, or a part of it that counts `share` of it, and returns its loss. `step` counts from 1, `rate` is the
    learning rate, and the last part of a step `changes` the weights. Raises ArrayFault for arrays that do not fit."""
    values = {LEARNING_RATE: np.float32(rate), STEP: np.float32(step), SHARE: np.float32(share),
              CHANGES: np.bool_(changes)}  # fmt: skip
    names = {tensor.name for tensor in session.inputs}
    scalars = {name: np.asarray(value) for name, value in values.items() if name in names}
    loss = session.outputs[0].name
    return float(session.run({**arrays, **scalars}, [loss])[loss])


def measure_loss(session: Session, batches: Iterable[Mapping[str, Any]], step: int) -> float:
    """The mean loss of batches. Steps with a learning rate of 0 leave all weights as they are; what the optimizer keeps
    is put back, also where a batch does not fit."""
    kept = session.copy_states([tensor.name for tensor in session.states if not is_weight(tensor)])
    try:
        losses = [run_part(session, arrays, max(1, step), 0.0, changes=False) for arrays in batches]
    finally:
        session.put_back(kept)
    return math.fsum(losses) / len(losses)
