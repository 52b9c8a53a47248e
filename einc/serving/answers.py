"""The documents that answer requests, as OpenAI's API defines them."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from einc_runtime.strict_json import Document

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array
    from einc_runtime.generation.sequence_batch import NewToken

Kind = Literal["completion", "chat"]

DONE = b"data: [DONE]\n\n"
"""The end of a stream."""

_OBJECT_NAMES = {
    "completion": ("cmpl", "text_completion", "text_completion"),
    "chat": ("chatcmpl", "chat.completion", "chat.completion.chunk"),
}


def make_event(document: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


@dataclass(slots=True)
class TextAnswer:
    """What has been said so far on each prompt of a request, whole or as the chunks of a stream.

    There are `count` texts for each prompt, and `prompt_tokens` has a number for each text. `name_token` is the text of
    a token, for those whose probabilities are told.
    """

    kind: Kind
    model: str
    prompt_tokens: Sequence[int]
    name_token: Callable[[int], str]
    count: int = 1
    logprobs: list[list[NewToken]] = field(init=False)
    texts: list[str] = field(init=False)
    tokens: list[int] = field(init=False)
    cached: list[int] = field(init=False)
    ended: list[str | None] = field(init=False)
    id: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.prompt_tokens)
        self.texts, self.tokens, self.ended = [""] * count, [0] * count, [None] * count
        self.cached = [0] * count
        self.logprobs = [[] for _ in range(count)]
        self.id = f"{_OBJECT_NAMES[self.kind][0]}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def add(self, index: int, new: NewToken) -> None:
        """Takes a token of the text of this index."""
        self.texts[index] += new.text
        self.tokens[index] += 1
        self.cached[index] = new.cached
        self.ended[index] = new.ended
        if new.logprobs is not None:
            self.logprobs[index].append(new)

    def whole(self) -> Document:
        """The answer to a request that wants no stream."""
        choices = [
            {
                "index": index,
                **self._say(text, "message"),
                "logprobs": self._tell(self.logprobs[index]),
                "finish_reason": self.ended[index],
            }
            for index, text in enumerate(self.texts)
        ]
        return {**self._head(_OBJECT_NAMES[self.kind][1]), "choices": choices, "usage": self.usage()}

    def first_chunks(self) -> list[Document]:
        """What a stream begins with: of a chat, who speaks."""
        if self.kind == "completion":
            return []
        return [self._chunk(index, {"delta": {"role": "assistant", "content": ""}}) for index in range(len(self.texts))]

    def chunks(self, index: int, new: NewToken) -> list[Document]:
        """What a stream says of a token: nothing of one whose text is not certain yet."""
        told = self._tell([new] if new.logprobs is not None else [])
        documents = [self._chunk(index, self._say(new.text, "delta"), None, told)] if new.text or told else []
        if new.ended is not None:
            nothing: Document = {"delta": {}} if self.kind == "chat" else {"text": ""}
            documents.append(self._chunk(index, nothing, new.ended))
        return documents

    def usage_chunk(self) -> Document:
        """The last chunk of a stream that asks for it."""
        return {**self._head(_OBJECT_NAMES[self.kind][2]), "choices": [], "usage": self.usage()}

    def usage(self) -> Document:
        """The numbers of tokens; an end token counts. Of several answers to a prompt, the first one has read it."""
        read, new = sum(self.prompt_tokens) // self.count, sum(self.tokens)
        details = {"cached_tokens": sum(self.cached[:: self.count])}
        return {
            "prompt_tokens": read,
            "completion_tokens": new,
            "total_tokens": read + new,
            "prompt_tokens_details": details,
        }

    def _head(self, name: str) -> Document:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def _say(self, text: str, field: str) -> Document:
        if self.kind == "completion":
            return {"text": text}
        return {field: {"role": "assistant", "content": text} if field == "message" else {"content": text}}

    def _tell(self, tokens: Sequence[NewToken]) -> Document | None:
        """The logarithms of the probabilities of tokens and of likely ones, in the form of completions or of chats."""
        rows = [(new.token, new.logprobs) for new in tokens if new.logprobs is not None]
        if not rows:
            return None
        if self.kind == "completion":
            return {
                "tokens": [self.name_token(token) for token, _ in rows],
                "token_logprobs": [told.logprob for _, told in rows],
                "top_logprobs": [{self.name_token(token): value for token, value in told.likely} for _, told in rows],
            }
        entries = [
            {**self._name(token, told.logprob), "top_logprobs": [self._name(*pair) for pair in told.likely]}
            for token, told in rows
        ]
        return {"content": entries}

    def _name(self, token: int, logprob: float) -> Document:
        text = self.name_token(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _chunk(
        self, index: int, content: Document, ended: str | None = None, logprobs: Document | None = None
    ) -> Document:
        choice = {"index": index, **content, "logprobs": logprobs, "finish_reason": ended}
        return {**self._head(_OBJECT_NAMES[self.kind][2]), "choices": [choice]}


def make_embeddings(model: str, vectors: Sequence[Array], tokens: int, is_base64: bool) -> Document:
    """The answer of `/v1/embeddings`: vectors [width] in f32, in the order of the texts."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encode_vector(vector) if is_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _encode_vector(vector: Array) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def make_model(name: str, created: int) -> Document:
    """What `/v1/models` says about a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "einc"}
