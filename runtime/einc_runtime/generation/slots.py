"""The sequences that a decoder's plans work on: each has a slot, and is started, continued and ended by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.generation.blocks import SPARE, BlockPool, name_blocks
from einc_runtime.generation.decode_plan import (
    DRAW_KEYS,
    DRAW_SETTINGS,
    DRAWN_TOKEN,
    LIKELY_LOGIT,
    LIKELY_TOKEN,
    DecodePlan,
    count_tokens,
)

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.execution.session import Session
    from einc_runtime.generation.draws import DrawSettings, Keys


@dataclass(slots=True)
class GenerationTimes:
    """Milliseconds and tokens so far: of prompts, which are read in pieces, and of steps of one token a sequence.
    `cached_tokens` are those of prompts that need not be read, since blocks have them."""

    prefill_ms: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_ms: float = 0.0
    decode_tokens: int = 0


@dataclass(slots=True)
class _HeldSequence:
    """A sequence: its tokens so far, its blocks, and the names of those that its prompt fills."""

    length: int = 0
    blocks: list[int] = field(default_factory=list)
    names: Sequence[bytes] = ()


class _BlockTable:
    """The blocks of each sequence of a run [slots, blocks]. Only rows that have changed are written."""

    def __init__(self, slots: int, blocks: int) -> None:
        self._table = np.full((slots, blocks), SPARE, np.int64)
        self._written: list[tuple[_HeldSequence | None, int]] = [(None, 0)] * slots

    def write(self, held: Sequence[_HeldSequence]) -> Array:
        """The table for these sequences, whose other rows are those of none."""
        for row, (before, count) in enumerate(self._written):
            sequence = held[row] if row < len(held) else None
            blocks = sequence.blocks if sequence is not None else ()
            if sequence is not before or len(blocks) != count:
                self._table[row] = SPARE
                self._table[row, : len(blocks)] = blocks
                self._written[row] = sequence, len(blocks)
        return self._table


@lru_cache(maxsize=64)
def _tabulate(settings: tuple[DrawSettings, ...], slots: int) -> Array:
    """The settings of the rows of a run [slots, 4], which change when texts come and go."""
    table = np.zeros((slots, 4), np.float32)
    table[: len(settings)] = settings or 0
    table.flags.writeable = False
    return table


class DecoderSlots:
    """Sequences over plans that take one token for each, and over plans that take more, for prompts.

    All plans are decode steps of one model over caches of the same size, and their weights are loaded. `step` takes one
    token of as many sequences as there may be; others may take one of fewer, which is faster where fewer run.
    """

    def __init__(self, step: Session, further: Sequence[Session] = ()) -> None:
        largest = DecodePlan.of(step)
        plans = [largest, *map(DecodePlan.of, further)]
        for plan in plans:
            if plan.memory != largest.memory:
                raise PlanFault(
                    f"a plan has {plan.places} places of a sequence in {plan.blocks} blocks, and another one "
                    f"{largest.places} in {largest.blocks}"
                )
        if largest.length != 1:
            raise PlanFault(f"expected a plan that takes one token of each sequence, found {largest.length}")
        self._largest = largest
        self._steps = sorted((plan for plan in plans if plan.length == 1), key=lambda plan: plan.slots)
        self._pieces = sorted((plan for plan in plans if plan.length > 1), key=lambda plan: (plan.length, plan.slots))
        self._last: Session = step  # whose states are those of all sequences
        self._slots = [_HeldSequence() for _ in range(largest.slots)]
        self._pool = BlockPool(largest.blocks, largest.block_size)
        self._tables = {plan.session: _BlockTable(plan.slots, plan.places // plan.block_size) for plan in plans}
        self._named: tuple[Sequence[int], str, list[bytes]] | None = None
        self.times = GenerationTimes()

    @property
    def lengths(self) -> list[int]:
        """How many tokens each sequence has."""
        return [slot.length for slot in self._slots]

    @property
    def places(self) -> int:
        """How many tokens a sequence may have in its cache."""
        return self._largest.places

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: each is a number below it."""
        return count_tokens(self._largest.session.bundle)

    def can_hold(self, places: int) -> bool:
        """Whether a sequence may have so many tokens, if there is no other one."""
        return places <= min(self.places, self._pool.count * self._pool.size)

    def start(self, slot: int, prompt: Sequence[int], places: int, salt: str = "") -> int | None:
        """Gives a free slot the blocks for so many tokens, those of a prompt included. Returns how many tokens of the
        prompt are there already, which earlier ones with the same salt had, too; None where there are no such blocks.

        These are whole pieces of the largest plan for prompts, which reads the same tokens with the same results. So
        what earlier sequences were changes no rounding of this one. Where plans carry more than caches, there are none.
        """
        names = () if self._largest.carries else self._name_blocks(prompt, salt)
        step = math.lcm(self._piece, self._pool.size)  # the last token is read in any case, for its logits
        cached = min(len(self._pool.find(names)) * self._pool.size, len(prompt) - 1) // step * step
        shared = self._pool.find(names)[: cached // self._pool.size]
        more = -(-places // self._pool.size) - len(shared)
        if not self._pool.fits(shared, more):
            return None
        self._slots[slot] = _HeldSequence(cached, self._pool.hold(shared, more), names)
        self.times.cached_tokens += cached
        return cached

    def end(self, slot: int) -> None:
        """Frees a slot for another sequence, which starts with the next tokens that it gets."""
        self._pool.leave(self._slots[slot].blocks)
        self._slots[slot] = _HeldSequence()

    def choose_pieces(self, unread: Mapping[int, int]) -> dict[int, int]:
        """Of slots with so many tokens to be read, those that one run reads next, and how many tokens of each: the next
        piece of the first one, and as long ones of others, as far as the plan takes them.

        How long pieces are depends on the length of a prompt alone.
        """
        return self._choose(unread)[1]

    def append(self, rows: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Continues the sequences of some slots by one token or more each; the others stay as they are.

        Returns the logits [vocab] after the last token of each. Raises ArrayFault where a cache has no room.
        """
        return {slot: logits for slot, (logits,) in self._append(rows, ("logits",)).items()}

    def append_likely(self, rows: Mapping[int, Sequence[int]]) -> Mapping[int, tuple[Any, ...]]:
        """The same, but returns the most likely next token of each with its logit, which is nan where any is. They
        are found where the logits are, if the plans do so."""
        if not self._largest.finds_likely:
            best = {slot: (int(np.argmax(logits)), logits) for slot, logits in self.append(rows).items()}
            return {slot: (token, float(logits[token])) for slot, (token, logits) in best.items()}
        return self._append(rows, (LIKELY_TOKEN, LIKELY_LOGIT))

    @property
    def draws(self) -> bool:
        """Whether plans draw tokens where the logits are."""
        return all(plan.draws for plan in self._steps)

    def append_drawn(
        self, rows: Mapping[int, Sequence[int]], draws: Mapping[int, tuple[DrawSettings, Keys]]
    ) -> dict[int, tuple[Any, ...] | Array]:
        """The same for one token each, but draws the next one as `draws` says, and returns it with the largest logit.
        Where the list of likely tokens is too short for that, the step runs again, for the logits."""
        drawn = self._append(rows, (DRAWN_TOKEN, LIKELY_LOGIT), draws)
        again = {slot: rows[slot] for slot, (token, _) in drawn.items() if token < 0}
        for slot in again:
            self._slots[slot].length -= 1
        return drawn | (self.append(again) if again else {})

    def _append(
        self,
        rows: Mapping[int, Sequence[int]],
        outputs: Sequence[str],
        draws: Mapping[int, tuple[DrawSettings, Keys]] = MappingProxyType({}),
    ) -> dict[int, tuple[Any, ...]]:
        for slot, tokens in rows.items():
            if not tokens or not self._make_room(slot, len(tokens)):
                raise ArrayFault(f"sequence {slot} cannot get {len(tokens)} tokens after {self._slots[slot].length}")
        start = perf_counter()
        unread: Mapping[int, Sequence[int]] = rows
        results: dict[int, tuple[Any, ...]] = {}
        while unread:
            plan, sizes = self._choose({slot: len(tokens) for slot, tokens in unread.items()})
            last = self._run(plan, {slot: unread[slot][:size] for slot, size in sizes.items()}, outputs, draws)
            results |= {slot: last[slot] for slot, size in sizes.items() if size == len(unread[slot])}
            unread = {slot: left for slot, tokens in unread.items() if (left := tokens[sizes.get(slot, 0) :])}
        single = all(len(tokens) == 1 for tokens in rows.values())
        self._record(single, sum(map(len, rows.values())), 1e3 * (perf_counter() - start))
        return results

    @property
    def _piece(self) -> int:
        """The tokens of the largest piece of prompts."""
        return self._pieces[-1].length if self._pieces else 1

    def _name_blocks(self, prompt: Sequence[int], salt: str) -> list[bytes]:
        """The names of the blocks that whole pieces of a prompt fill. Those of the last one are kept: it may wait for
        blocks for many steps."""
        if self._named is None or self._named[0] is not prompt or self._named[1] != salt:
            regular = prompt[: len(prompt) // self._piece * self._piece] if self._pieces else ()
            self._named = prompt, salt, name_blocks(regular, self._pool.size, salt)
        return self._named[2]

    def _make_room(self, slot: int, more: int) -> bool:
        """Whether a sequence has places for so many more tokens. It is given blocks for them, if it lacks these."""
        sequence = self._slots[slot]
        length = sequence.length + more
        if length > self._largest.places:
            return False
        lacking = -(-length // self._pool.size) - len(sequence.blocks)
        if lacking <= 0:
            return True
        if not self._pool.fits((), lacking):
            return False
        sequence.blocks += self._pool.hold((), lacking)
        return True

    def _choose(self, unread: Mapping[int, int]) -> tuple[DecodePlan, dict[int, int]]:
        """The plan of the next run, and how many tokens it takes of each slot."""
        length = self._find_length(next(iter(unread.values())))
        slots = [slot for slot, count in unread.items() if self._find_length(count) == length]
        plans = [plan for plan in (*self._steps, *self._pieces) if plan.length == length]
        plan = next((plan for plan in plans if plan.slots >= len(slots)), plans[-1])
        return plan, {slot: min(length, unread[slot]) for slot in slots[: plan.slots]}

    def _find_length(self, count: int) -> int:
        """How many of so many tokens are read next: as the smallest plan has that takes all, else the largest."""
        if count == 1 or not self._pieces:
            return 1
        return next((plan.length for plan in self._pieces if plan.length >= count), self._pieces[-1].length)

    def _run(
        self,
        plan: DecodePlan,
        rows: Mapping[int, Sequence[int]],
        outputs: Sequence[str],
        draws: Mapping[int, tuple[DrawSettings, Keys]],
    ) -> dict[int, tuple[Any, ...]]:
        """Runs a plan once. Returns of each output what it says of the last token of every slot.

        A row that is too short starts with its first token several times, at one position: the last one counts, and
        all are equal. Rows without a sequence write to the spare block.
        """
        length, size, count = plan.length, plan.block_size, len(rows)
        held = [self._slots[slot] for slot in rows]
        arrays = np.zeros((3, plan.slots, length), np.int64)
        if length == 1:
            lengths = [sequence.length for sequence in held]
            next_places = [
                sequence.blocks[n // size] * size + n % size for sequence, n in zip(held, lengths, strict=True)
            ]
            arrays[:, :count, 0] = [token for (token,) in rows.values()], lengths, next_places
        else:
            for row, (sequence, tokens) in enumerate(zip(held, rows.values(), strict=True)):
                nth = np.maximum(np.arange(length) - (length - len(tokens)), 0)
                at = sequence.length + nth
                arrays[:, row] = np.asarray(tokens)[nth], at, np.asarray(sequence.blocks)[at // size] * size + at % size
        ids, positions, places = arrays.reshape(3, -1)
        inputs: dict[str, Array] = {
            "ids": ids, "positions": positions, "cache_places": places, "last": plan.last,
            "cache_blocks": self._tables[plan.session].write(held),
        }  # fmt: skip
        if DRAW_KEYS in plan.inputs:
            drawn = [draws[slot] for slot in rows] if draws else []
            keys = np.zeros((plan.slots, 2), np.int32)
            keys[: len(drawn)] = [keys_of_row for _, keys_of_row in drawn] or 0
            settings = _tabulate(tuple(settings_of_row for settings_of_row, _ in drawn), plan.slots)
            inputs |= {DRAW_SETTINGS: settings, DRAW_KEYS: keys}
        self._bring_states(plan.session)
        results = plan.session.run({name: inputs[name] for name in plan.inputs}, outputs)
        for sequence, tokens in zip(held, rows.values(), strict=True):
            self._advance(sequence, len(tokens))
        arrays_of_rows = (results[name] for name in outputs)
        last = ((array if len(array) == plan.slots else array[plan.last])[:count] for array in arrays_of_rows)
        values = (array.tolist() if array.ndim == 1 else array for array in last)
        return dict(zip(rows, zip(*values, strict=True), strict=True))

    def _advance(self, sequence: _HeldSequence, count: int) -> None:
        """Counts new tokens, and names the blocks that they fill."""
        first = sequence.length // self._pool.size
        sequence.length += count
        for number in range(first, min(sequence.length // self._pool.size, len(sequence.names))):
            self._pool.name(sequence.blocks[number], sequence.names[number])

    def _bring_states(self, session: Session) -> None:
        """Copies the caches from the session that ran last, if the two do not share them."""
        last, self._last = self._last, session
        if last is not session:
            session.take_states(last)

    def _record(self, single: bool, tokens: int, milliseconds: float) -> None:
        times = self.times
        if single:
            times.decode_ms, times.decode_tokens = times.decode_ms + milliseconds, times.decode_tokens + tokens
        else:
            times.prefill_ms, times.prefill_tokens = times.prefill_ms + milliseconds, times.prefill_tokens + tokens
