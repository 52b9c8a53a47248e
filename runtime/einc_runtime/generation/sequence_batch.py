"""Sequences of a decoder, one in each slot: each starts, gets its tokens and ends by itself while the others go on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einc_runtime.errors import ArrayFault, ReportedError, UsageFault
from einc_runtime.generation.engine import Progress
from einc_runtime.generation.sampling import GREEDY, Sampling, TokenSampler
from einc_runtime.generation.text_stream import TextStream

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.generation.slots import DecoderSlots
    from einc_runtime.generation.tokenizer import TextTokenizer


class TokenGrammar(Protocol):
    """Which tokens may come next in one sequence, so that its text has a form."""

    def find_allowed(self) -> Array:
        """Flags [vocab] of the tokens that may come next."""

    def advance(self, token: int) -> bool:
        """Takes a token. Returns whether nothing may follow it."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """The tokens of a prompt, and how it is continued. Equal seeds and numbers draw equal tokens.

    `end_tokens` end the text, as those of the model do unless `ignores_ends`; none of them comes before `min_tokens`
    others. `stops` are texts, or special tokens by their names, that end it, too. `joins` says that the text goes on
    from that of the prompt. `logprobs` is the number of likely tokens that are told with each token, None for nothing.
    Only prompts with the same `salt` share what was made of their beginnings.
    """

    tokens: Sequence[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    stops: Sequence[str] = ()
    number: int = 0
    end_tokens: Collection[int] = ()
    ignores_ends: bool = False
    min_tokens: int = 0
    joins: bool = True
    logprobs: int | None = None
    grammar: TokenGrammar | None = None
    salt: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The natural logarithm of the probability of a token by the model, and the most likely tokens with theirs."""

    logprob: float
    likely: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class NewToken:
    """A token of the sequence of this number, and the text that is certain by now.

    `ended` is None until the sequence ends: with an end token or stop text ("stop"), or because it has as many tokens
    as it may have ("length"). `cached` are the tokens of its prompt that did not have to be read.
    """

    sequence: int
    token: int
    text: str
    ended: str | None
    logprobs: TokenLogprobs | None = None
    cached: int = 0


@dataclass(slots=True)
class _Sequence:
    """`unread` are the tokens of its prompt that are not in its cache yet."""

    request: SequenceRequest
    sampler: TokenSampler
    text: TextStream | None
    left: int
    end_tokens: frozenset[int]
    unread: list[int] = field(default_factory=list)
    last: int = -1
    count: int = 0
    cached: int = 0

    @property
    def needs_logits(self) -> bool:
        """Whether more of the logits is of interest than the next token."""
        request = self.request
        return request.logprobs is not None or request.grammar is not None or self.count < request.min_tokens


class SequenceBatch:
    """What the sequences of `slots` do next. Without a tokenizer, they have no texts."""

    def __init__(
        self, slots: DecoderSlots, tokenizer: TextTokenizer | None = None, end_tokens: Collection[int] = ()
    ) -> None:
        self._slots, self._tokenizer, self._end_tokens = slots, tokenizer, frozenset(end_tokens)
        self._running: dict[int, _Sequence] = {}
        self._vocabulary = slots.vocabulary

    @property
    def size(self) -> int:
        """How many sequences run at once."""
        return len(self._slots.lengths)

    def check(self, request: SequenceRequest) -> None:
        """Raises ArrayFault for tokens that cannot be read, and UsageFault for what cannot be asked for."""
        tokens, places = request.tokens, self._slots.places
        if not tokens:
            raise ArrayFault(f"prompt {request.number} has no tokens", hint="it needs one at least")
        if len(tokens) > places:
            raise ArrayFault(
                f"prompt {request.number} has {len(tokens):,} tokens, and the caches have {places:,} places"
            )
        if not self._slots.can_hold(self._count_places(request)):
            raise ArrayFault(f"prompt {request.number} and its new tokens need more blocks than there are")
        if not (min(tokens) >= 0 and max(tokens) < self._vocabulary):
            wrong = next(token for token in tokens if not 0 <= token < self._vocabulary)
            raise ArrayFault(f"prompt {request.number}: there are {self._vocabulary:,} tokens, and {wrong} is none")
        if request.max_tokens < 1:
            raise UsageFault(f"expected one new token at least, found {request.max_tokens}")
        if request.stops and self._tokenizer is None:
            raise UsageFault("stop texts need a tokenizer")
        named = (*request.end_tokens, *(token for token, _ in request.sampling.logit_bias))
        if not all(0 <= token < self._vocabulary for token in named):
            raise UsageFault(f"end tokens and biases: there are {self._vocabulary:,} tokens, from 0 on")

    def start(self, slot: int, request: SequenceRequest) -> bool:
        """Begins a sequence, which was checked, in a slot that is free, if there are places for all tokens that it may
        have: none has to be thrown out later."""
        places = self._count_places(request)
        cached = self._slots.start(slot, request.tokens, places, request.salt)
        if cached is None:
            return False
        tokenizer, text = self._tokenizer, None
        end_tokens = {*request.end_tokens, *(() if request.ignores_ends else self._end_tokens)}
        if tokenizer is not None:
            text = TextStream(tokenizer, request.stops, request.tokens if request.joins else ())
            end_tokens |= {token for stop in request.stops if (token := tokenizer.find_special(stop)) is not None}
        sampler = TokenSampler(request.sampling, request.number, request.tokens)
        left, unread = places - len(request.tokens) + 1, list(request.tokens[cached:])
        self._running[slot] = _Sequence(request, sampler, text, left, frozenset(end_tokens), unread, cached=cached)
        return True

    def _count_places(self, request: SequenceRequest) -> int:
        """The places of a prompt and its new tokens, of which the last one needs none."""
        return min(len(request.tokens) + max(1, request.max_tokens) - 1, self._slots.places)

    def end(self, slot: int) -> None:
        """Frees a slot; a sequence that ends by itself does so, too."""
        self._running.pop(slot, None)
        self._slots.end(slot)

    def advance(self) -> list[Progress[NewToken]]:
        """Reads one piece of prompts, where there are some, and takes one step of the other sequences.

        So prompts, however long, delay a step by one piece at most.
        """
        return [*self.read(), *self.step()]

    @property
    def is_reading(self) -> bool:
        """Whether there are prompts that are not read to their end."""
        return any(sequence.unread for sequence in self._running.values())

    def read(self) -> list[Progress[NewToken]]:
        """Reads the next piece of the prompt that began first, and as long ones of others that the same run takes."""
        counts = {slot: len(sequence.unread) for slot, sequence in self._running.items() if sequence.unread}
        if not counts:
            return []
        sizes = self._slots.choose_pieces(counts)
        logits = self._slots.append({slot: self._running[slot].unread[:size] for slot, size in sizes.items()})
        for slot, size in sizes.items():
            del self._running[slot].unread[:size]
        return self._choose((slot, logits[slot]) for slot in sorted(sizes) if not self._running[slot].unread)

    def step(self) -> list[Progress[NewToken]]:
        """Takes one token of every sequence whose prompt is read, in the order of slots."""
        ready = {slot: sequence for slot, sequence in sorted(self._running.items()) if not sequence.unread}
        if not ready:
            return []
        last = {slot: [sequence.last] for slot, sequence in ready.items()}
        if any(sequence.needs_logits for sequence in ready.values()):
            return self._choose(self._slots.append(last).items())
        samplers = {slot: sequence.sampler for slot, sequence in ready.items()}
        if all(sampler.takes_likely for sampler in samplers.values()):
            return self._choose(self._slots.append_likely(last).items())
        if self._slots.draws and all(sampler.draws_listed for sampler in samplers.values()):
            draws = {slot: (sampler.settings, sampler.find_keys()) for slot, sampler in samplers.items()}
            return self._choose(self._slots.append_drawn(last, draws).items())
        return self._choose(self._slots.append(last).items())

    def _choose(self, rows: Iterable[tuple[int, Array | tuple[Any, ...]]]) -> list[Progress[NewToken]]:
        """The next token of each slot, from its logits, or as a plan has found it, with the largest logit. A sequence
        without one ends, and no other."""
        progress: list[Progress[NewToken]] = []
        for slot, logits in rows:
            sequence = self._running[slot]
            try:
                new = self._extend(sequence, logits)
            except ReportedError as error:
                progress.append(Progress(slot, error, True))
            else:
                progress.append(Progress(slot, new, new.ended is not None))
            if progress[-1].is_last:
                self.end(slot)
        return progress

    def _extend(self, sequence: _Sequence, logits: Array | tuple[Any, ...]) -> NewToken:
        request = sequence.request
        grammar = request.grammar
        if isinstance(logits, tuple):
            token = sequence.sampler.take(*logits)
        else:
            excluded = sequence.end_tokens if sequence.count < request.min_tokens else ()
            token = sequence.sampler.choose(logits, excluded, None if grammar is None else grammar.find_allowed())
        sequence.last, sequence.left, sequence.count = token, sequence.left - 1, sequence.count + 1
        ended, text = None, ""
        if token in sequence.end_tokens:
            ended = "stop"
        elif sequence.text is not None:
            text = sequence.text.push(token)
            ended = "stop" if sequence.text.stopped else None
        if ended is None and grammar is not None and grammar.advance(token):
            ended = "stop"
        if ended is None and sequence.left == 0:
            ended = "length"
        if ended is not None and sequence.text is not None:
            text += sequence.text.finish()
        told = None
        if request.logprobs is not None and not isinstance(logits, tuple):
            told = find_logprobs(logits, token, request.logprobs)
        return NewToken(request.number, token, text, ended, told, sequence.cached)


def find_logprobs(logits: Array, token: int, count: int) -> TokenLogprobs:
    """The logarithms of probabilities of a token and of the `count` most likely ones, from the logits [vocab]."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    likely = np.argsort(-wide, kind="stable")[:count]
    return TokenLogprobs(float(wide[token]), tuple((int(t), float(wide[t])) for t in likely))
