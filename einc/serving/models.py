"""What is served: a decoder that continues texts, or an encoder that makes vectors of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from einc.serving.fields import ApiError
from einc.serving.requests import ChatRequest, CompletionRequest, Continuation, EmbeddingRequest, Prompt
from einc_runtime.errors import UsageFault
from einc_runtime.generation.chat import ChatRenderer
from einc_runtime.generation.model_folder import ChatTemplate
from einc_runtime.generation.sampling import Sampling
from einc_runtime.generation.sequence_batch import NewToken, SequenceRequest, TokenGrammar
from einc_runtime.generation.slots import GenerationTimes
from einc_runtime.text import escape_text

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.generation.engine import Engine
    from einc_runtime.generation.json_grammars import JsonGrammars
    from einc_runtime.generation.tokenizer import TextTokenizer


MAX_CHARACTERS = 64
"""Characters for each token that a text may have: longer texts are refused before seconds are spent to count theirs."""


@dataclass(frozen=True, slots=True)
class TextModel:
    """A decoder. `sampling` is what a request gets that names nothing else, `places` the tokens of a text, and
    `max_tokens` the most new ones of a request. `times` are those of its engine so far."""

    engine: Engine[SequenceRequest, NewToken]
    tokenizer: TextTokenizer
    template: ChatTemplate | None
    chat: ChatRenderer
    sampling: Sampling
    places: int
    max_tokens: int
    times: GenerationTimes
    grammars: JsonGrammars | None = None

    def read_completion(self, request: CompletionRequest) -> list[SequenceRequest]:
        """The sequences of a request. It takes time for long prompts. Raises ApiError and ReportedError."""
        rows = [_encode(self.tokenizer, prompt, self.places) for prompt in request.prompts]
        return self._complete(rows, request.how, joins=True)

    def read_chat(self, request: ChatRequest) -> list[SequenceRequest]:
        """The one sequence of a conversation; the model's template is run in a process of its own."""
        if self.template is None:
            raise ApiError(400, "this model has no chat template: /v1/completions continues texts")
        variables = {**self.template.variables, **request.variables}
        text = self.chat.render(self.template.choose(variables), request.messages, variables, self.template.file)
        return self._complete([_encode(self.tokenizer, text, self.places, special=False)], request.how, joins=False)

    def name_token(self, token: int) -> str:
        """The text of a token alone."""
        return self.tokenizer.decode([token], special=True)

    def _complete(self, rows: Sequence[Sequence[int]], how: Continuation, *, joins: bool) -> list[SequenceRequest]:
        if how.max_tokens is not None and how.max_tokens > self.max_tokens:
            raise ApiError(400, f"max_tokens: at most {self.max_tokens:,} here, found {how.max_tokens:,}",
                           param="max_tokens")  # fmt: skip
        seed = secrets.randbits(63) if how.seed is None else how.seed % 2**64
        sampling = replace(
            self.sampling,
            temperature=self.sampling.temperature if how.temperature is None else how.temperature,
            top_p=self.sampling.top_p if how.top_p is None else how.top_p,
            seed=seed,
            **how.settings,
        )
        grammars = self._make_grammars(how, len(rows) * how.count)
        return [
            self._fit(
                SequenceRequest(
                    rows[n // how.count], 0, sampling, how.stops, n, end_tokens=how.end_tokens,
                    ignores_ends=how.ignores_ends, min_tokens=how.min_tokens, joins=joins, logprobs=how.logprobs,
                    grammar=grammars[n], salt=how.salt,
                ),
                how.max_tokens,
            )
            for n in range(len(rows) * how.count)
        ]  # fmt: skip

    def _make_grammars(self, how: Continuation, count: int) -> Sequence[TokenGrammar | None]:
        """One of each text, where its form is to be that of a schema."""
        if how.schema is None:
            return [None] * count
        if self.grammars is None:
            raise ApiError(400, "response_format: this model has no grammars of JSON", param="response_format")
        return self.grammars.make(how.schema, count)

    def _fit(self, request: SequenceRequest, requested: int | None) -> SequenceRequest:
        """The same with as many new tokens as asked for, or else as there is room for."""
        room = self.places - len(request.tokens) + 1
        if room < (requested or 1):
            new_tokens = "" if requested is None else f" and {requested:,} new ones"
            raise ApiError(
                400,
                f"a prompt of {len(request.tokens):,} tokens{new_tokens} does not fit: "
                f"a text has {self.places:,} at most",
                code="context_length_exceeded",
            )
        return replace(request, max_tokens=min(room, self.max_tokens) if requested is None else requested)


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """An encoder, which makes one vector of a text of up to `places` tokens."""

    engine: Engine[Sequence[int], Array]
    tokenizer: TextTokenizer
    places: int

    def read(self, request: EmbeddingRequest) -> list[Sequence[int]]:
        """The tokens of every text. Raises ApiError and ReportedError."""
        rows = [_encode(self.tokenizer, text, self.places) for text in request.texts]
        for row in rows:
            if len(row) > self.places:
                raise ApiError(400, f"a text has {len(row):,} tokens, and the model reads {self.places:,} at most",
                               code="context_length_exceeded", param="input")  # fmt: skip
        return rows


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of a server, and since when it is there, in seconds of the epoch."""

    name: str
    created: int
    model: TextModel | EmbeddingModel

    def require_text(self, name: str) -> TextModel:
        self.require_name(name)
        if not isinstance(self.model, TextModel):
            raise ApiError(400, f"'{self.name}' makes vectors of texts (/v1/embeddings), and continues none")
        return self.model

    def require_embedding(self, name: str) -> EmbeddingModel:
        self.require_name(name)
        if not isinstance(self.model, EmbeddingModel):
            raise ApiError(400, f"'{self.name}' continues texts (/v1/completions), and makes no vectors of them")
        return self.model

    def require_name(self, name: str) -> None:
        """Raises ApiError where this is not its name."""
        if name != self.name:
            message = f"there is no model '{escape_text(name, 60)}': this server has '{self.name}'"
            raise ApiError(404, message, code="model_not_found", param="model")


def _encode(tokenizer: TextTokenizer, prompt: Prompt, places: int, *, special: bool = True) -> Sequence[int]:
    if isinstance(prompt, str) and len(prompt) > MAX_CHARACTERS * places:
        message = f"a text of {len(prompt):,} characters does not fit into {places:,} tokens"
        raise ApiError(400, message, code="context_length_exceeded")
    tokens = tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt
    if not tokens:
        raise UsageFault("a text has no tokens", hint="it needs one at least")
    return tokens
