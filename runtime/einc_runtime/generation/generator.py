"""Text from a decoder: prompts are read in pieces, then all sequences get one token after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from einc_runtime.errors import ReportedError, UsageFault
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.sequence_batch import NewToken, SequenceBatch, SequenceRequest
from einc_runtime.generation.slots import DecoderSlots, GenerationTimes
from einc_runtime.plan.schema import Bundle

if TYPE_CHECKING:
    from einc_runtime.execution.data.weights import WeightSource
    from einc_runtime.execution.facts import ExecutionFacts
    from einc_runtime.generation.tokenizer import TextTokenizer

Prompt = str | Sequence[int]


@dataclass(slots=True)
class Completion:
    """What followed on a prompt. An end token is the last of `tokens`, and no part of `text`."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ended: str | None = None


def open_sessions(bundles: Sequence[Bundle], weights: WeightSource, backend: str = "auto") -> list[Session]:
    """Sessions of plans of one model with their weights loaded, which share weights and states."""
    common = share_buffers()
    sessions = [Session(bundle, backend, common=common) for bundle in bundles]
    for session in sessions:
        session.load_weights(weights, only_missing=True)
    return sessions


def share_buffers() -> SharedBuffers:
    """Memory for sessions of several plans of one model. Steps with few rows read weights as they lie, so that another
    layout for those with many rows would be a second copy; libraries pack parts of a weight in each call instead."""
    return SharedBuffers(prepack=False)


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
        self._batch = SequenceBatch(self._slots, tokenizer, end_tokens)

    @property
    def times(self) -> GenerationTimes:
        """What all runs so far took."""
        return self._slots.times

    @property
    def facts(self) -> ExecutionFacts:
        """How the plan of a step runs (`Session.facts`)."""
        return self._step.facts

    def generate(
        self, prompts: Sequence[Prompt], max_tokens: int, sampling: Sampling = GREEDY, stops: Sequence[str] = ()
    ) -> list[Completion]:
        """What follows on each prompt."""
        rows = [self._encode(prompt) for prompt in prompts]
        completions = [Completion(len(tokens)) for tokens in rows]
        for new in self.stream(rows, max_tokens, sampling, stops):
            completion = completions[new.sequence]
            completion.tokens.append(new.token)
            completion.text, completion.ended = completion.text + new.text, new.ended
        return completions

    def stream(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stops: Sequence[str] = (),
        *,
        joins: bool = True,
    ) -> Iterator[NewToken]:
        """The tokens of all sequences as they are chosen, those of one step in the order of their slots.

        Texts go on from those of their prompts if `joins` is true; answers of a chat stand by themselves.
        Raises UsageFault where something is asked for that cannot be, and ArrayFault for prompts that are too long.
        """
        requests = [
            SequenceRequest(self._encode(prompt), max_tokens, sampling, stops, number, joins=joins)
            for number, prompt in enumerate(prompts)
        ]
        for request in requests:
            self._batch.check(request)
        return self._stream(requests)

    def _stream(self, requests: Sequence[SequenceRequest]) -> Iterator[NewToken]:
        batch, waiting, running = self._batch, deque(requests), set[int]()
        try:
            while waiting or running:
                free = [slot for slot in range(batch.size) if slot not in running]
                for slot in free:
                    if waiting and batch.start(slot, waiting[0]):
                        waiting.popleft()
                        running.add(slot)
                for progress in batch.read() if batch.is_reading else batch.step():
                    running -= {progress.slot} if progress.is_last else set()
                    if isinstance(progress.result, ReportedError):
                        raise progress.result
                    yield progress.result
        finally:
            for slot in running:
                batch.end(slot)

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if self._tokenizer is None:
            raise UsageFault("prompts of text need a tokenizer")
        return self._tokenizer.encode(prompt)
