"""From the bodies of requests to what is asked for. Nothing here knows a model, its tokenizer, or the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from einc.serving.errors import ApiError
from einc.serving.fields import RequestFields, wrong_field
from einc_runtime.strict_json import describe_json

MAX_INTEGER = 2**63 - 1
MAX_TOKENS = 2**31
MAX_TEMPERATURE = 2.0
"""As in OpenAI's API."""
MAX_STOPS, MAX_STOP = 16, 256
"""Stop texts, and characters of each: what was said is searched for them at every token."""
MAX_TEXTS = 2048
"""Texts or prompts in one request, as in OpenAI's API."""
COMPLETION_TOKENS = 16
"""New tokens of a completion that names no number, as in OpenAI's API."""

_MESSAGE_ROLES = ("system", "developer", "user", "assistant")
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
"""Fields that change nothing of an answer."""
_SAMPLING = ("model", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "max_tokens")
_IGNORED_FIELDS: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
}
_OF_COMPLETIONS = {**_IGNORED_FIELDS, "best_of": (1,), "echo": (False,), "suffix": ("",), "logprobs": ()}
_OF_CHATS = {
    **_IGNORED_FIELDS, "logprobs": (False,), "top_logprobs": (0,), "tools": ([],), "tool_choice": ("none", "auto"),
    "functions": ([],), "function_call": ("none", "auto"), "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}  # fmt: skip

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a text is continued; None leaves the choice to the server."""

    model: str
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    seed: int | None
    stops: tuple[str, ...]
    is_stream: bool
    has_usage: bool
    """Whether a stream ends with the numbers of tokens."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Texts, or tokens, that are continued."""

    prompts: tuple[Prompt, ...]
    how: Continuation


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation, which the model goes on with."""

    messages: tuple[Mapping[str, str], ...]
    how: Continuation


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts, or tokens, that become vectors; `is_base64` asks for the bytes of f32 instead of numbers."""

    model: str
    texts: tuple[Prompt, ...]
    is_base64: bool


def parse_completion(body: bytes) -> CompletionRequest:
    """The request of `/v1/completions`. Raises ApiError."""
    fields = RequestFields(body)
    fields.require(_OF_COMPLETIONS)
    fields.refuse_others((*_SAMPLING, *_IGNORED, *_OF_COMPLETIONS, "prompt"))
    how = _parse_continuation(fields, "max_tokens", COMPLETION_TOKENS)
    return CompletionRequest(_parse_prompts(fields, "prompt"), how)


def parse_chat(body: bytes) -> ChatRequest:
    """The request of `/v1/chat/completions`. Raises ApiError."""
    fields = RequestFields(body)
    fields.require(_OF_CHATS)
    fields.refuse_others((*_SAMPLING, *_IGNORED, *_OF_CHATS, "messages", "max_completion_tokens"))
    name = "max_tokens" if fields.value("max_completion_tokens") is None else "max_completion_tokens"
    how = _parse_continuation(fields, name, None)
    messages = fields.value("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong_field("messages", "expected a list of messages", messages)
    return ChatRequest(tuple(_parse_message(f"messages[{at}]", message) for at, message in enumerate(messages)), how)


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """The request of `/v1/embeddings`. Raises ApiError."""
    fields = RequestFields(body)
    fields.refuse_others(("model", "input", "encoding_format", "dimensions", *_IGNORED))
    form = fields.text("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise wrong_field("encoding_format", "expected float or base64", form)
    if fields.value("dimensions") is not None:
        raise ApiError(400, "dimensions: vectors have as many numbers as the model makes", param="dimensions")
    return EmbeddingRequest(_parse_model(fields), _parse_prompts(fields, "input"), form == "base64")


def _parse_model(fields: RequestFields) -> str:
    model = fields.text("model")
    if not model:
        raise ApiError(400, "model: a request has to name one; GET /v1/models tells which there is", param="model")
    return model


def _parse_continuation(fields: RequestFields, limit: str, default: int | None) -> Continuation:
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise wrong_field("top_p", "expected a number above 0; temperature 0 takes the most likely token", 0)
    max_tokens = fields.integer(limit, 1, MAX_TOKENS)
    is_stream = fields.flag("stream")
    options = fields.value("stream_options")
    if options is not None and not is_stream:
        raise ApiError(400, "stream_options: they mean nothing without stream", param="stream_options")
    return Continuation(
        model=_parse_model(fields),
        max_tokens=default if max_tokens is None else max_tokens,
        temperature=fields.number("temperature", 0, MAX_TEMPERATURE),
        top_p=top_p,
        seed=fields.integer("seed", -MAX_INTEGER - 1, MAX_INTEGER),
        stops=fields.strings("stop", MAX_STOPS, MAX_STOP),
        is_stream=is_stream,
        has_usage=_parse_stream_options(options),
    )


def _parse_stream_options(options: object) -> bool:
    options = {} if options is None else options
    known = {"include_usage", "include_obfuscation"}
    if not isinstance(options, dict) or not options.keys() <= known:
        raise wrong_field("stream_options", "expected an object with include_usage", options)
    usage = options.get("include_usage", False)
    if not isinstance(usage, bool):
        raise wrong_field("stream_options", "include_usage: expected true or false", usage)
    return usage


def _parse_prompts(fields: RequestFields, name: str) -> tuple[Prompt, ...]:
    """A text, a list of texts, the tokens of one, or a list of lists of tokens."""
    value = fields.value(name)
    rows = value if isinstance(value, list) and not _is_token(value[0] if value else None) else [value]
    if not rows or len(rows) > MAX_TEXTS or value is None:
        raise wrong_field(name, f"expected 1 to {MAX_TEXTS:,} texts", value)
    return tuple(_parse_prompt(name, row) for row in rows)


def _parse_prompt(name: str, row: object) -> Prompt:
    if isinstance(row, str):
        return row
    if isinstance(row, list) and all(map(_is_token, row)):
        return tuple(row)
    raise wrong_field(name, "expected texts, or lists of tokens", row)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parse_message(where: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise wrong_field(where, "expected an object with role and content", message)
    role = message.get("role")
    if role not in _MESSAGE_ROLES:
        raise wrong_field(f"{where}.role", f"expected one of {', '.join(_MESSAGE_ROLES)}", role)
    for name, value in message.items():
        if name not in ("role", "content", "name") and value not in (None, []):
            raise ApiError(400, f"{where}: messages with {describe_json(name)} are not supported", param=where)
    return {"role": "system" if role == "developer" else role, "content": _parse_content(where, message.get("content"))}


def _parse_content(where: str, content: Any) -> str:
    """A text, or parts of one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong_field(f"{where}.content", "expected a text", content)
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise wrong_field(f"{where}.content", "only parts of the type text are supported", content)
    return "".join(map(str, texts))
