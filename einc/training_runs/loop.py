"""The loop of a training run: a step after another, held-out losses and checkpoints on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from einc.training.control import SHARE
from einc.training.steps import LEARNING_RATE
from einc.training_runs.batches import Batches
from einc.training_runs.checkpoints import RunProgress, write_checkpoint
from einc.training_runs.settings import RunSettings, find_rate
from einc.training_runs.step import measure_loss, run_part
from einc_runtime.errors import RuntimeFault, UsageFault
from einc_runtime.execution.session import Session


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
        losses = [
            run_part(self.session, self.batches.draw(first + n), step, rate, share=1 / parts, changes=n == parts - 1)
            for n in range(parts)
        ]
        return math.fsum(losses) / parts

    def _evaluate(self, held_out: Batches) -> float:
        numbers = range(1, self.settings.evaluate_batches + 1)
        return measure_loss(self.session, map(held_out.draw, numbers), self.progress.step)


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
