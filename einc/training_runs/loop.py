"""The loop of a training run: a step after another, held-out losses and checkpoints on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from einc.training.control import CHANGES, SHARE
from einc.training.steps import LEARNING_RATE, STEP
from einc.training_runs.batches import Array, Batches
from einc.training_runs.checkpoints import RunProgress, write_checkpoint
from einc.training_runs.settings import RunSettings, find_rate
from einc_runtime.errors import RuntimeFault, UsageFault
from einc_runtime.execution.session import Session
from einc_runtime.plan.states import is_weight


class DivergedFault(RuntimeFault):
    """A loss that is no number any more."""

    code, exit_code = "check", 1


@dataclass(slots=True)
class TrainingRun:
    """A session of a training step whose weights are loaded, its data, and how far it has come.

    Of several processes that run a plan together, all do the same, and one `leads`: it knows losses and writes files.
    `note` is called after each step.
    """

    session: Session
    settings: RunSettings
    batches: Batches
    progress: RunProgress
    held_out: Batches | None = None
    folder: Path | None = None
    leads: bool = True
    note: Callable[[RunProgress], None] = lambda _: None

    def run(self) -> RunProgress:
        """Makes the steps that are left. Raises DivergedFault, ArrayFault for unfit data, and OSError."""
        settings, progress = self.settings, self.progress
        while progress.step < settings.steps:
            step = progress.step + 1
            loss = self._make_step(step)
            if self.leads and not math.isfinite(loss):
                hint = "try a lower --rate, a longer --warmup, or a plan compiled with --clip 1"
                raise DivergedFault(f"the loss of step {step} is {loss}", hint=hint)
            progress.losses.append(loss)
            last = step == settings.steps
            if self.held_out is not None and (last or _is_due(step, settings.evaluate_every)):
                progress.evaluations.append((step, self._evaluate(self.held_out)))
            if self.folder is not None and (last or _is_due(step, settings.checkpoint_every)):
                write_checkpoint(self.folder, self.session, progress, settings.keep, writes=self.leads)
            self.note(progress)
        return progress

    def _make_step(self, step: int) -> float:
        """The mean loss of the parts of a step, which are the samples that one run of all of them would have."""
        parts, rate = self.settings.accumulate, find_rate(self.settings, step)
        first = (step - 1) * parts + 1
        losses = [self._run_part(self.batches, first + n, step, rate, last=n == parts - 1) for n in range(parts)]
        return math.fsum(losses) / parts

    def _run_part(self, batches: Batches, sample: int, step: int, rate: float, *, last: bool) -> float:
        names = {tensor.name for tensor in self.session.inputs}
        scalars = {
            LEARNING_RATE: np.float32(rate), STEP: np.float32(step),
            SHARE: np.float32(1 / self.settings.accumulate), CHANGES: np.bool_(last),
        }  # fmt: skip
        arrays: dict[str, Array] = batches.draw(sample)
        arrays |= {name: np.asarray(value) for name, value in scalars.items() if name in names}
        self.session.load_all(arrays)
        self.session.execute()
        return float(self.session.offload(self.session.outputs[0].name))

    def _evaluate(self, held_out: Batches) -> float:
        """The mean loss of held-out samples. Steps with a learning rate of 0 leave all weights as they are; what the
        optimizer keeps is put back."""
        kept = self.session.copy_states([t.name for t in self.session.states if not is_weight(t)])
        count = self.settings.evaluate_batches
        losses = [self._run_part(held_out, n + 1, self.progress.step, 0.0, last=False) for n in range(count)]
        self.session.put_back(kept)
        return math.fsum(losses) / count


def require_training_step(session: Session, accumulate: int) -> None:
    """Raises UsageFault for a plan that is no training step, or that cannot add up the gradients of several runs."""
    inputs, outputs = {tensor.name for tensor in session.inputs}, session.outputs
    if LEARNING_RATE not in inputs or not session.states or not outputs or outputs[0].shape:
        hint = "compile one: einc compile MODEL.ein --train LOSS --optimizer adamw -o step.bin"
        raise UsageFault(f"the plan of {session.bundle.model} is no training step", hint=hint)
    if accumulate > 1 and SHARE not in inputs:
        hint = "compile it again with --accumulate"
        raise UsageFault(f"the plan of {session.bundle.model} changes its weights in every run", hint=hint)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
