"""Texts of an encoder, one in each slot: each becomes one vector, together with others that are about as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.generation.decode_plan import count_tokens
from einc_runtime.generation.engine import Progress

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """A session that makes a vector of `width` numbers of each of `batch` texts of up to `length` tokens."""

    session: Session
    batch: int
    length: int
    width: int

    @staticmethod
    def of(session: Session) -> EncoderPlan:
        """Reads the sizes from the plan; raises PlanFault if it pools nothing."""
        shapes = {tensor.name: tensor.shape for tensor in session.bundle.tensors}
        outputs = [tensor.name for tensor in session.outputs]
        if not {"ids", "mask"} <= shapes.keys() or outputs != ["embedding"]:
            raise PlanFault(
                f"{session.bundle.model} makes no vectors of texts",
                hint="einc import hf DIR --pool mean writes a model that does",
            )
        batch, length = shapes["ids"]
        return EncoderPlan(session, batch, length, shapes["embedding"][-1])


class EmbeddingBatch:
    """Over plans of one encoder for texts of several lengths, with equally many texts each and weights loaded.

    A text's own length decides which plan reads it, so that its vector does not depend on other texts.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._plans = sorted(map(EncoderPlan.of, sessions), key=lambda plan: plan.length)
        if len({(plan.batch, plan.width) for plan in self._plans}) != 1:
            raise PlanFault("the plans of an encoder have unequal numbers of texts")
        self._vocabulary = count_tokens(self._plans[0].session.bundle)
        self._rows: dict[int, Sequence[int]] = {}

    @property
    def size(self) -> int:
        """How many texts are read at once."""
        return self._plans[0].batch

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        return self._plans[0].width

    def check(self, request: Sequence[int]) -> None:
        """Raises ArrayFault for tokens that cannot be read."""
        longest = self._plans[-1].length
        if not request or len(request) > longest:
            raise ArrayFault(f"a text has {len(request):,} tokens: expected 1 to {longest:,}")
        if not (min(request) >= 0 and max(request) < self._vocabulary):
            wrong = next(token for token in request if not 0 <= token < self._vocabulary)
            raise ArrayFault(f"there are {self._vocabulary:,} tokens, and {wrong} is none")

    def start(self, slot: int, request: Sequence[int]) -> bool:
        """Takes a text, which was checked, into a free slot."""
        self._rows[slot] = request
        return True

    def end(self, slot: int) -> None:
        self._rows.pop(slot, None)

    def advance(self) -> list[Progress[Array]]:
        """The vectors [width] in f32 of the text that came first, and of all others that its plan reads."""
        plans = {slot: self._choose(len(tokens)) for slot, tokens in self._rows.items()}
        plan = next(iter(plans.values()), None)
        if plan is None:
            return []
        slots = [slot for slot, slot_plan in plans.items() if slot_plan is plan]
        ids = np.zeros((plan.batch, plan.length), np.int64)
        mask = np.zeros((plan.batch, plan.length), np.bool_)
        mask[:, 0] = True  # a text without tokens has no mean
        for slot in slots:
            tokens = self._rows[slot]
            ids[slot, : len(tokens)], mask[slot, : len(tokens)] = tokens, True
        vectors = plan.session.run({"ids": ids, "mask": mask}, ["embedding"])["embedding"]
        for slot in slots:
            self.end(slot)
        return [Progress(slot, vectors[slot].astype(np.float32), True) for slot in slots]

    def _choose(self, count: int) -> EncoderPlan:
        return next(plan for plan in self._plans if plan.length >= count)
