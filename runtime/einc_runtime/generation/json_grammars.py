"""Texts that are JSON by a schema: which tokens may come next is decided by the library llguidance."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.errors import ArrayFault, MissingFault
from einc_runtime.installing import suggest_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from einc_runtime.dtypes import Array

MAX_SCHEMA = 1 << 18
"""Characters of a schema, as JSON."""


class JsonGrammars:
    """Makes grammars for a tokenizer, which is read when the first one is wanted. Threads may share it.

    `tokenizer` is the text of a tokenizer.json, `vocabulary` the number of logits, and `end_tokens` those that may end
    a text.
    """

    def __init__(self, tokenizer: str, vocabulary: int, end_tokens: Collection[int]) -> None:
        self._document, self._vocabulary, self._end_tokens = tokenizer, vocabulary, list(end_tokens)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def make(self, schema: str, count: int) -> list[JsonGrammar]:
        """So many grammars of a schema. Raises ArrayFault for schemas that are none, or that the library does not take,
        and MissingFault where it is not installed."""
        try:
            from llguidance import LLMatcher, LLTokenizer
        except ImportError:
            hint = suggest_extra("schemas")
            raise MissingFault("texts by a JSON schema need the package llguidance", hint=hint) from None
        if len(schema) > MAX_SCHEMA:
            raise ArrayFault(
                f"a JSON schema of {len(schema):,} characters is too long: at most {MAX_SCHEMA:,} are read"
            )
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(self._document, self._vocabulary, self._end_tokens or None)
        try:
            matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        except ValueError as error:
            raise ArrayFault(f"this JSON schema is not supported: {str(error)[:300]}") from None
        if matcher.is_error():
            raise ArrayFault(f"this JSON schema is not supported: {matcher.get_error()[:300]}")
        return [JsonGrammar(matcher.deep_copy(), self._vocabulary) for _ in range(count)]


class JsonGrammar:
    """Which tokens may come next in one text (`sequence_batch.TokenGrammar`)."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def find_allowed(self) -> Array:
        """Flags [vocab]. Raises ArrayFault where the library gives up: a schema can be too complex."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        mask = allocate_token_bitmask(1, self._vocabulary)
        fill_next_token_bitmask(self._matcher, mask)
        self._check()
        bits = np.unpackbits(mask.astype("<i4").view(np.uint8), bitorder="little")
        allowed: Array = bits[: self._vocabulary].astype(bool)
        return allowed

    def advance(self, token: int) -> bool:
        """Takes a token. Returns whether the text is complete."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ArrayFault(f"the text cannot go on by its JSON schema: {self._matcher.get_error()[:300]}")
