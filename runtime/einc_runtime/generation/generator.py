"""Text from a decoder: prompts are read in pieces, then all sequences get one token after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.generation.sampling import GREEDY, Sampling, TokenSampler
from einc_runtime.generation.slots import DecoderSlots, GenerationTimes
from einc_runtime.generation.text_stream import TextStream
from einc_runtime.plan.schema import ITEMSIZE, Bundle

if TYPE_CHECKING:
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.generation.tokenizer import TextTokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token of the prompt `sequence`, counted from 0, and the text that is certain by now.

    `ended` is None until the sequence ends: with an end token or stop text ("stop"), or because it has as many tokens
    as it may have ("length").
    """

    sequence: int
    token: int
    text: str
    ended: str | None


@dataclass(slots=True)
class Completion:
    """What followed on a prompt. An end token is the last of `tokens`, and no part of `text`."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ended: str | None = None


@dataclass(slots=True)
class _Sequence:
    number: int
    sampler: TokenSampler
    text: TextStream | None
    left: int
    last: int = -1


def open_sessions(bundles: Sequence[Bundle], weights: WeightSource, backend: str = "auto") -> list[Session]:
    """Sessions of plans of one model with their weights loaded. On a CPU they share weights and states.

    Weights of 32 bits and more are not prepacked: this would take as much memory again.
    """
    widest = max(
        (ITEMSIZE[one.dtype] for bundle in bundles for one in bundle.tensors if one.kind == "weight"), default=0
    )
    common = SharedBuffers(prepack=widest < ITEMSIZE["f32"])
    sessions = [Session(bundle, backend, common=common) for bundle in bundles]
    for session in sessions:
        session.load_weights(weights, only_missing=True)
    return sessions


class Generator:
    """Made of sessions, whose weights are loaded: a decode step of one token, and steps of more for prompts.

    As many sequences run at once as the plans have; when one ends, the next prompt takes its place. Without a
    `tokenizer`, prompts are tokens. The sessions must not be used elsewhere meanwhile.
    """

    def __init__(
        self,
        step: Session,
        pieces: Sequence[Session] = (),
        *,
        tokenizer: TextTokenizer | None = None,
        end_tokens: Collection[int] = (),
    ) -> None:
        self._step, self._slots = step, DecoderSlots(step, pieces)
        self._tokenizer = tokenizer
        self._end_tokens = frozenset(end_tokens)

    @property
    def times(self) -> GenerationTimes:
        """What all runs so far took."""
        return self._slots.times

    @property
    def facts(self) -> dict[str, Any]:
        """How the plan of a step runs (`Session.facts`)."""
        return self._step.facts

    def generate(
        self, prompts: Sequence[Prompt], max_tokens: int, sampling: Sampling = GREEDY, stops: Sequence[str] = ()
    ) -> list[Completion]:
        """What follows on each prompt."""
        rows = self._read_prompts(prompts)
        found = [Completion(len(tokens)) for tokens in rows]
        for new in self.stream(rows, max_tokens, sampling, stops):
            one = found[new.sequence]
            one.tokens.append(new.token)
            one.text, one.ended = one.text + new.text, new.ended
        return found

    def stream(
        self, prompts: Sequence[Prompt], max_tokens: int, sampling: Sampling = GREEDY, stops: Sequence[str] = ()
    ) -> Iterator[NewToken]:
        """The tokens of all sequences as they are chosen, those of one step in the order of their slots.

        Raises UsageFault where something is asked for that cannot be, and ArrayFault for prompts that are too long.
        """
        rows = self._read_prompts(prompts)
        if max_tokens < 1:
            raise UsageFault(f"expected one new token at least, found {max_tokens}")
        if stops and self._tokenizer is None:
            raise UsageFault("stop texts need a tokenizer")
        return self._stream(rows, max_tokens, sampling, stops)

    def _stream(
        self, rows: Sequence[Sequence[int]], max_tokens: int, sampling: Sampling, stops: Sequence[str]
    ) -> Iterator[NewToken]:
        waiting, running = deque(enumerate(rows)), dict[int, _Sequence]()
        try:
            while waiting or running:
                free = [slot for slot in range(len(self._slots.lengths)) if slot not in running]
                new = {slot: waiting.popleft() for slot in free[: len(waiting)]}
                for slot, (number, tokens) in new.items():
                    text = None if self._tokenizer is None else TextStream(self._tokenizer, stops)
                    left = min(max_tokens, self._slots.places - len(tokens) + 1)
                    running[slot] = _Sequence(number, TokenSampler(sampling, number), text, left)
                fed = {slot: tokens for slot, (_, tokens) in new.items()}
                logits = self._slots.append(fed or {slot: [one.last] for slot, one in running.items()})
                for slot, row in logits.items():
                    chosen = self._extend(running[slot], running[slot].sampler.choose(row))
                    if chosen.ended is not None:
                        del running[slot]
                        self._slots.end(slot)
                    yield chosen
        finally:
            for slot in running:
                self._slots.end(slot)

    def _extend(self, one: _Sequence, token: int) -> NewToken:
        one.last, one.left = token, one.left - 1
        ended, text = None, ""
        if token in self._end_tokens:
            ended = "stop"
        elif one.text is not None:
            text = one.text.push(token)
            ended = "stop" if one.text.stopped else None
        if ended is None and one.left == 0:
            ended = "length"
        if ended is not None and one.text is not None:
            text += one.text.finish()
        return NewToken(one.number, token, text, ended)

    def _read_prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        rows = []
        for number, prompt in enumerate(prompts):
            tokens = self._encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
            if not tokens:
                raise ArrayFault(f"prompt {number} has no tokens", hint="it needs one at least")
            if len(tokens) > self._slots.places:
                raise ArrayFault(
                    f"prompt {number} has {len(tokens):,} tokens, and the caches have {self._slots.places:,} places"
                )
            rows.append(tokens)
        return rows

    def _encode(self, prompt: str) -> list[int]:
        if self._tokenizer is None:
            raise UsageFault("prompts of text need a tokenizer")
        return self._tokenizer.encode(prompt)
