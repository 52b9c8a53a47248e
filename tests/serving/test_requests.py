"""Whatever a body is, it is understood, or refused by an error that a client can read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc.serving.fields import ApiError
from einc.serving.requests import ChatRequest, CompletionRequest, parse_chat, parse_completion, parse_embedding
from tests.support.property_examples import examples

NAMES = (
    "model", "prompt", "input", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed",
    "stop", "stream", "stream_options", "n", "tools", "response_format", "logit_bias", "user", "encoding_format",
    "role", "content", "type", "text", "include_usage", "other",
)  # fmt: skip
PARSERS: tuple[Callable[[bytes], object], ...] = (parse_completion, parse_chat, parse_embedding)
LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=6) | st.sampled_from(["user", "text", "m", "base64", 1, True, 0.5])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
SOUND = {"model": "m", "prompt": "a"}, {"model": "m", "messages": [{"role": "user", "content": "a"}]}


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), st.sampled_from([{}, *SOUND]))
@examples(150)
def test_any_document_is_understood_or_refused(fields: dict[str, object], sound: dict[str, object]) -> None:
    body = json.dumps({**sound, **fields}).encode()
    for parse in PARSERS:
        try:
            found = parse(body)
        except ApiError as error:
            check_readable(error)
            continue
        if isinstance(found, CompletionRequest | ChatRequest):
            assert found.how.model
            assert found.how.temperature is None or 0 <= found.how.temperature <= 2
            assert found.how.max_tokens is None or found.how.max_tokens > 0


def check_readable(error: ApiError) -> None:
    document = json.loads(json.dumps(error.document(), ensure_ascii=False).encode())
    assert 0 < len(document["error"]["message"]) < 400
    assert 400 <= error.status < 500


@given(st.binary(max_size=40))
@examples(150)
def test_any_bytes_are_refused(body: bytes) -> None:
    for parse in PARSERS:
        with pytest.raises(ApiError) as found:
            parse(body)
        check_readable(found.value)
