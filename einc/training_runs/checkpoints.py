"""Checkpoints: all states of a training step, and how far a run has come, in one safetensors file each.

A file appears whole or not at all. Weights have the names that they have in weight files, so that any plan of the model
takes a checkpoint as `--weights`; what an optimizer keeps has the names of the plan, and what a run needs to go on has
names that begin with `training.`, which no tensor of a text has.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from einc.core.tensor import Array
from einc.importers.weight_files import describe_weight, write_weights
from einc.training_runs.settings import MAX_TRAINING_STEPS
from einc_runtime.disk import write_file
from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Tensor

CHECKPOINT_FILE = "step-{:08d}.safetensors"
_CHECKPOINT_NAME = re.compile(r"step-(\d{8})\.safetensors")
FACTS_PREFIX = "training."
NO_DATA = bytes(32)
"""The fingerprint of the data of a loop of one's own, which nobody knows."""
_PLAIN = re.compile(r"[^\[\]*]+(\[\d+:\d+\])?")
"""Names in weight files of one tensor, or of some of its rows, which readers put together with others."""


@dataclass(slots=True)
class RunProgress:
    """How far a run has come: the loss of each step, and held-out losses with the steps after which they were taken.

    `seed` and `fingerprint` are those of its data.
    """

    seed: int
    fingerprint: bytes
    losses: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The steps that were made."""
        return len(self.losses)

    @property
    def held_out_loss(self) -> float | None:
        """The held-out loss after the last step; None where none was taken then: that of an earlier step is of other
        weights."""
        return dict(self.evaluations).get(self.step)


def name_in_file(tensors: Sequence[Tensor]) -> dict[str, str]:
    """What states are called in a checkpoint, by their names in the plan."""
    counts = Counter(tensor.stored for tensor in tensors)
    return {
        tensor.name: tensor.stored
        if tensor.stored is not None and counts[tensor.stored] == 1 and _PLAIN.fullmatch(tensor.stored)
        else tensor.name
        for tensor in tensors
    }


def write_checkpoint(folder: Path, session: Session, progress: RunProgress, keep: int, *, writes: bool = True) -> None:
    """Writes the states of a session, and removes older checkpoints but the last `keep`.

    Of several processes, all take part and one `writes`. Raises WriteFault.
    """
    write_states(folder / CHECKPOINT_FILE.format(progress.step), session, progress, writes=writes)
    for path in list_checkpoints(folder)[:-keep] if writes else ():
        path.unlink(missing_ok=True)


def write_states(path: str | os.PathLike[str], session: Session, progress: RunProgress, *, writes: bool = True) -> None:
    """Writes the states of a session and the progress of its run, whole or not at all. Raises WriteFault."""
    names = name_in_file(session.states)
    arrays: dict[str, Array] = {names[tensor.name]: session.offload(tensor.name) for tensor in session.states}
    if not writes:
        return
    arrays[f"{FACTS_PREFIX}losses"] = np.array(progress.losses, np.float64)
    arrays[f"{FACTS_PREFIX}evaluated"] = np.array([step for step, _ in progress.evaluations], np.int64)
    arrays[f"{FACTS_PREFIX}evaluations"] = np.array([loss for _, loss in progress.evaluations], np.float64)
    arrays[f"{FACTS_PREFIX}seed"] = np.array(progress.seed, np.int64)
    arrays[f"{FACTS_PREFIX}data"] = np.frombuffer(progress.fingerprint, "<i4").astype(np.int32)
    weights = [describe_weight(name, array) for name, array in arrays.items()]
    write_file(str(path), lambda stream: write_weights(stream, weights))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the earliest first. Raises OSError where it cannot be read."""
    return sorted(path for path in folder.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name)) if folder.exists() else []


def read_checkpoint(path: Path, session: Session) -> RunProgress:
    """Loads the states of a checkpoint into a session, and returns how far the run has come.

    Raises ArrayFault, with every difference, for a file that is none of this plan's; nothing is loaded then.
    """
    file = SafetensorsFile(str(path))
    expected: dict[str, tuple[str, tuple[int, ...] | None]] = {
        f"{FACTS_PREFIX}losses": ("f64", None), f"{FACTS_PREFIX}evaluated": ("i64", None),
        f"{FACTS_PREFIX}evaluations": ("f64", None), f"{FACTS_PREFIX}seed": ("i64", ()),
        f"{FACTS_PREFIX}data": ("i32", (8,)),
    }  # fmt: skip
    names = name_in_file(session.states)
    expected |= {names[tensor.name]: (tensor.dtype, tensor.shape) for tensor in session.states}
    raise_together(_find_differences(file, expected), where=str(path))
    losses = file.array(f"{FACTS_PREFIX}losses").tolist()
    steps, values = file.array(f"{FACTS_PREFIX}evaluated").tolist(), file.array(f"{FACTS_PREFIX}evaluations").tolist()
    numbered = _CHECKPOINT_NAME.fullmatch(path.name)
    in_order = len(steps) == len(values) and all(0 < step <= len(losses) for step in steps) and steps == sorted(steps)
    if (numbered is not None and int(numbered[1]) != len(losses)) or not in_order:
        raise ArrayFault(f"its {len(losses)} losses are not those of a run of as many steps", where=str(path))
    session.load_all((tensor.name, file.array(names[tensor.name])) for tensor in session.states)
    fingerprint = file.array(f"{FACTS_PREFIX}data").astype("<i4").tobytes()
    seed = int(file.array(f"{FACTS_PREFIX}seed"))
    return RunProgress(seed, fingerprint, losses, list(zip(steps, values, strict=True)))


def _find_differences(file: SafetensorsFile, expected: Mapping[str, tuple[str, tuple[int, ...] | None]]) -> list[str]:
    problems = []
    for name, (dtype, shape) in expected.items():
        entry = file.entries.get(name)
        if entry is None:
            problems.append(f"it has no '{name}'")
        elif entry.dtype != dtype or (shape is not None and entry.shape != shape):
            extents = "" if shape is None else str(list(shape))
            problems.append(f"expected {dtype}{extents} for '{name}', found {entry.dtype}{list(entry.shape)}")
        elif shape is None and (len(entry.shape) != 1 or entry.shape[0] > MAX_TRAINING_STEPS):
            problems.append(f"'{name}' is no list of at most {MAX_TRAINING_STEPS:,} numbers")
    return problems
