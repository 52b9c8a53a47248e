"""The sequences that a decoder's plans work on: each has a slot, and is started, continued and ended by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.plan.index_programs import read_index_program

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session
    from einc_runtime.plan.schema import Bundle, Operation


@dataclass(slots=True)
class GenerationTimes:
    """Milliseconds and tokens so far: of prompts, which are read in pieces, and of steps of one token a sequence."""

    prefill_ms: float = 0.0
    prefill_tokens: int = 0
    prefill_runs: int = 0
    decode_ms: float = 0.0
    decode_tokens: int = 0
    decode_runs: int = 0


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """A session that takes `length` new tokens for each of `slots` sequences, with caches of `places` each."""

    session: Session
    slots: int
    length: int
    places: int

    @staticmethod
    def of(session: Session) -> DecodePlan:
        """Reads the sizes from the plan; raises PlanFault if it is not that of a decode step."""
        shapes = {tensor.name: tensor.shape for tensor in session.bundle.tensors}
        operation = next((candidate for candidate in session.bundle.operations if candidate.family == "append"), None)
        if not {"ids", "positions", "logits"} <= shapes.keys() or operation is None or not session.states:
            raise PlanFault(
                f"{session.bundle.model} is no decode step: it lacks ids, positions, logits, or a cache",
                hint="einc compile MODEL.ein --step tokens=1 makes the plan of one",
            )
        caches = operation.attributes.get("cache_lens")
        cache_lengths = (
            caches if isinstance(caches, list) else [shapes[session.bundle.tensors[operation.inputs[0]].name][1]]
        )
        lengths = {int(places) for places in cache_lengths}
        slots = len(cache_lengths)
        if len(lengths) != 1 or shapes["ids"][0] % slots or shapes["logits"][0] not in (slots, shapes["ids"][0]):
            raise PlanFault(f"the sequences of {session.bundle.model} have unequal lengths")
        return DecodePlan(session, slots, shapes["ids"][0] // slots, lengths.pop())


class DecoderSlots:
    """Sequences over a plan that takes one token for each, and over plans that take more, for prompts.

    All plans are decode steps of one model, with equally many sequences and places, and their weights are loaded.
    """

    def __init__(self, step: Session, pieces: Sequence[Session] = ()) -> None:
        self._step = DecodePlan.of(step)
        self._pieces = sorted(map(DecodePlan.of, pieces), key=lambda plan: plan.length)
        for plan in self._pieces:
            if (plan.slots, plan.places) != (self._step.slots, self._step.places):
                raise PlanFault(
                    f"a plan has {plan.slots} sequences of {plan.places} places, and another one "
                    f"{self._step.slots} of {self._step.places}"
                )
        if self._step.length != 1:
            raise PlanFault(f"expected a plan that takes one token of each sequence, found {self._step.length}")
        self._last: Session = step  # whose states are those of all sequences
        self.lengths = [0] * self._step.slots
        self.times = GenerationTimes()

    @property
    def places(self) -> int:
        """How many tokens a sequence may have in its cache."""
        return self._step.places

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: each is a number below it."""
        return count_tokens(self._step.session.bundle)

    def choose_length(self, count: int) -> int:
        """The length of the plan that takes the next of `count` tokens: the smallest that takes all, else the largest.

        It depends on nothing else, so that whatever other sequences do changes no rounding of this one.
        """
        return self._choose(count).length

    def end(self, slot: int) -> None:
        """Frees a slot for another sequence, which starts with the next tokens that it gets."""
        self.lengths[slot] = 0

    def append(self, rows: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Continues the sequences of some slots by one token or more each; the others stay as they are.

        Returns the logits [vocab] after the last token of each. Raises ArrayFault where a cache has no room.
        """
        for slot, tokens in rows.items():
            if not tokens or self.lengths[slot] + len(tokens) > self.places:
                raise ArrayFault(f"sequence {slot} cannot get {len(tokens)} tokens after {self.lengths[slot]}")
        start = perf_counter()
        unread = {slot: list(tokens) for slot, tokens in rows.items()}
        results: dict[int, Array] = {}
        runs = 0
        while unread:
            plan = self._choose(len(next(iter(unread.values()))))
            pieces = {
                slot: tokens[: plan.length] for slot, tokens in unread.items() if self._choose(len(tokens)) is plan
            }
            logits = self._run(plan, pieces)
            results |= {slot: logits[slot] for slot, piece in pieces.items() if len(piece) == len(unread[slot])}
            left = {slot: tokens[len(pieces.get(slot, ())) :] for slot, tokens in unread.items()}
            unread = {slot: tokens for slot, tokens in left.items() if tokens}
            runs += 1
        single = all(len(tokens) == 1 for tokens in rows.values())
        self._record(single, sum(map(len, rows.values())), runs, 1e3 * (perf_counter() - start))
        return results

    def _choose(self, count: int) -> DecodePlan:
        if count == 1 or not self._pieces:
            return self._step
        return next((plan for plan in self._pieces if plan.length >= count), self._pieces[-1])

    def _run(self, plan: DecodePlan, rows: Mapping[int, Sequence[int]]) -> Array:
        """Runs a plan once. Returns the logits [slots, vocab] after the last token of every sequence.

        A row that is too short starts with its first token several times, at one position: the last one counts, and
        all are equal. The other sequences write at the place after their last one, where nothing is read before it is
        written again.
        """
        ids = np.zeros((plan.slots, plan.length), np.int64)
        positions = np.empty((plan.slots, plan.length), np.int64)
        for slot, first in enumerate(self.lengths):
            tokens = rows.get(slot, ())
            positions[slot] = min(first, plan.places - 1)
            if tokens:
                front = plan.length - len(tokens)
                ids[slot, :front], ids[slot, front:] = tokens[0], tokens
                positions[slot, front:] = np.arange(first, first + len(tokens))
        inputs = {"ids": ids.reshape(-1), "positions": positions.reshape(-1)}
        if any(tensor.name == "last" for tensor in plan.session.inputs):
            inputs["last"] = plan.length * np.arange(1, plan.slots + 1, dtype=np.int64) - 1
        self._bring_states(plan.session)
        logits = plan.session.run(inputs, ["logits"])["logits"]
        for slot, tokens in rows.items():
            self.lengths[slot] += len(tokens)
        return logits if len(logits) == plan.slots else logits[plan.length - 1 :: plan.length]

    def _bring_states(self, session: Session) -> None:
        """Copies the caches from the session that ran last, if the two do not share them."""
        last, self._last = self._last, session
        if last is not session:
            session.take_states(last)

    def _record(self, single: bool, tokens: int, runs: int, milliseconds: float) -> None:
        times = self.times
        if single:
            times.decode_ms, times.decode_tokens = times.decode_ms + milliseconds, times.decode_tokens + tokens
            times.decode_runs += runs
        else:
            times.prefill_ms, times.prefill_tokens = times.prefill_ms + milliseconds, times.prefill_tokens + tokens
            times.prefill_runs += runs


def count_tokens(bundle: Bundle) -> int:
    """How many tokens a model knows that looks up `ids` in tables."""
    counts = (_count_rows(bundle, operation) for operation in bundle.operations if operation.family == "index")
    return min((count for count in counts if count), default=0)


def _count_rows(bundle: Bundle, operation: Operation) -> int:
    """The rows of the table in which an index program looks up `ids`; 0 if it does not."""
    inputs = [bundle.tensors[number] for number in operation.inputs]
    shapes = tuple(tuple(tensor.shape) for tensor in inputs)
    lookup = read_index_program(lambda name, _: operation.attributes[name], shapes).lookup
    if lookup is None or inputs[lookup.ids].name != "ids":
        return 0
    return inputs[lookup.table].shape[lookup.dim]
