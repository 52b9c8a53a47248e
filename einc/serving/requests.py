"""From the bodies of requests to what is asked for. Nothing here knows a model, its tokenizer, or the network.

Conversations become messages as chat templates take them, and what else a template is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from einc.serving.fields import ApiError, RequestFields, wrong_field
from einc_runtime.generation.chat import Message
from einc_runtime.strict_json import describe_json, parse_json

MAX_INTEGER = 2**63 - 1
MAX_TOKENS = 2**31
MAX_TEMPERATURE = 2.0
"""As in OpenAI's API."""
MAX_CHOICES, MAX_LIKELY, MAX_BIASES = 128, 20, 1024
"""Answers to one prompt, likely tokens that are told with each token, and tokens with a bias."""
MAX_STOPS, MAX_STOP = 16, 256
"""Stop texts, and characters of each: what was said is searched for them at every token."""
MAX_TEXTS = 2048
"""Texts or prompts in one request, as in OpenAI's API."""
COMPLETION_TOKENS = 16
"""New tokens of a completion that names no number, as in OpenAI's API."""

_IGNORED = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
    "priority", "request_id", "spaces_between_special_tokens", "include_reasoning", "verbosity",
)  # fmt: skip
"""Fields that change nothing of an answer."""
_TEXT_FIELDS = (
    "model", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "max_tokens", "n", "top_k", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop_token_ids", "ignore_eos",
    "min_tokens", "logprobs", "response_format", "cache_salt",
)  # fmt: skip
_CHAT_FIELDS = (
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "documents", "reasoning_effort",
    "chat_template_kwargs", "add_generation_prompt",
)  # fmt: skip
_FIXED: dict[str, tuple[object, ...]] = {
    "use_beam_search": (False,), "length_penalty": (1, 1.0), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "return_token_ids": (False,), "prompt_logprobs": (), "truncate_prompt_tokens": (),
    "echo": (False,), "best_of": (1,),
}  # fmt: skip
"""Fields of OpenAI's API and of vLLM that may only have values that ask for nothing."""
_FIXED_IN_COMPLETIONS = {**_FIXED, "suffix": ("",), "add_special_tokens": (True,)}
_FIXED_IN_CHATS = {
    **_FIXED, "functions": ([],), "function_call": ("none", "auto"), "modalities": (["text"],),
    "add_special_tokens": (False,), "continue_final_message": (False,),
}  # fmt: skip
_RESPONSE_FORMATS = ("text", "json_object", "json_schema")

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
    count: int = 1
    """Answers to each prompt."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `Sampling` that the request states."""
    end_tokens: tuple[int, ...] = ()
    ignores_ends: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    """How many likely tokens are told with each token; None tells nothing."""
    schema: str | None = None
    """The JSON schema of the text, as JSON."""
    salt: str = ""
    """Only requests with the same one share what was made of the beginnings of their prompts."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Texts, or tokens, that are continued."""

    prompts: tuple[Prompt, ...]
    how: Continuation


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation, which the model goes on with; the template gets `variables`, too."""

    messages: tuple[Message, ...]
    how: Continuation
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts, or tokens, that become vectors; `is_base64` asks for the bytes of f32 instead of numbers."""

    model: str
    texts: tuple[Prompt, ...]
    is_base64: bool


def parse_completion(body: bytes) -> CompletionRequest:
    """The request of `/v1/completions`. Raises ApiError."""
    fields = RequestFields(body)
    fields.require(_FIXED_IN_COMPLETIONS)
    fields.refuse_others((*_TEXT_FIELDS, *_IGNORED, *_FIXED_IN_COMPLETIONS, "prompt"))
    how = _parse_continuation(fields, "max_tokens", COMPLETION_TOKENS, fields.integer("logprobs", 0, MAX_LIKELY))
    return CompletionRequest(_parse_prompts(fields, "prompt"), how)


def parse_chat(body: bytes) -> ChatRequest:
    """The request of `/v1/chat/completions`. Raises ApiError."""
    fields = RequestFields(body)
    fields.require(_FIXED_IN_CHATS)
    fields.refuse_others((*_TEXT_FIELDS, *_IGNORED, *_FIXED_IN_CHATS, *_CHAT_FIELDS))
    name = "max_tokens" if fields.value("max_completion_tokens") is None else "max_completion_tokens"
    likely = fields.integer("top_logprobs", 0, MAX_LIKELY)
    how = _parse_continuation(fields, name, None, (likely or 0) if fields.flag("logprobs") else None)
    if likely and how.logprobs is None:
        raise ApiError(400, "top_logprobs: they mean nothing without logprobs", param="top_logprobs")
    return ChatRequest(parse_messages(fields), how, parse_variables(fields))


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """The request of `/v1/embeddings`. Raises ApiError."""
    fields = RequestFields(body)
    fields.refuse_others(("model", "input", "encoding_format", "dimensions", "cache_salt", *_IGNORED))
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


def _parse_continuation(fields: RequestFields, limit: str, default: int | None, logprobs: int | None) -> Continuation:
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
        count=fields.integer("n", 1, MAX_CHOICES) or 1,
        settings=_parse_settings(fields),
        end_tokens=_parse_tokens(fields, "stop_token_ids"),
        ignores_ends=fields.flag("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, MAX_TOKENS) or 0,
        logprobs=logprobs,
        schema=_parse_format(fields),
        salt=fields.text("cache_salt") or "",
    )


def _parse_settings(fields: RequestFields) -> dict[str, Any]:
    """Fields of `Sampling` that are there, with their names in it."""
    top_k = fields.integer("top_k", -1, MAX_TOKENS)
    repetition = fields.number("repetition_penalty", 0, 1e3)
    if repetition == 0:
        raise wrong_field("repetition_penalty", "expected a number above 0", 0)
    stated = {
        "top_k": None if top_k is None else max(0, top_k),
        "min_p": fields.number("min_p", 0, 1),
        "repetition_penalty": repetition,
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "logit_bias": _parse_biases(fields),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _parse_biases(fields: RequestFields) -> tuple[tuple[int, float], ...] | None:
    """What is added to the logits of tokens; JSON has their numbers as texts."""
    biases = fields.value("logit_bias")
    if biases is None:
        return None
    if not isinstance(biases, dict) or len(biases) > MAX_BIASES:
        raise wrong_field("logit_bias", f"expected an object of at most {MAX_BIASES:,} tokens", biases)
    for name, bias in biases.items():
        if not (name.isascii() and name.isdigit() and len(name) < 10):
            raise wrong_field("logit_bias", "expected numbers of tokens as names", name)
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not -100 <= bias <= 100:
            raise wrong_field("logit_bias", "expected numbers from -100 to 100", bias)
    return tuple(sorted({int(name): float(bias) for name, bias in biases.items()}.items()))


def _parse_tokens(fields: RequestFields, name: str) -> tuple[int, ...]:
    tokens = fields.value(name)
    if tokens is None:
        return ()
    if not isinstance(tokens, list) or len(tokens) > MAX_BIASES or not all(map(_is_token, tokens)):
        raise wrong_field(name, f"expected a list of at most {MAX_BIASES:,} tokens", tokens)
    return tuple(tokens)


def _parse_format(fields: RequestFields) -> str | None:
    """The JSON schema that `response_format` asks for, as JSON; None for any text."""
    form = fields.value("response_format")
    kind = "text" if form is None else form.get("type") if isinstance(form, dict) else form
    if kind not in _RESPONSE_FORMATS:
        raise wrong_field("response_format", f"expected an object with a type of {', '.join(_RESPONSE_FORMATS)}", kind)
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    inner = form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        raise wrong_field("response_format", "expected a json_schema with an object as its schema", schema)
    return json.dumps(schema)


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


_MESSAGE_ROLES = ("system", "developer", "user", "assistant", "tool")
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_TOOL_CHOICES = ("none", "auto")


def parse_messages(fields: RequestFields) -> tuple[Message, ...]:
    """The messages of a request. Raises ApiError."""
    messages = fields.value("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong_field("messages", "expected a list of messages", messages)
    return tuple(_parse_message(f"messages[{at}]", message) for at, message in enumerate(messages))


def parse_variables(fields: RequestFields) -> dict[str, Any]:
    """What a template is told besides messages: tools, documents, and whatever it may know of. Raises ApiError.

    Tools are text for the template. How a model calls one is part of its answer's text, which nothing here takes apart.
    """
    choice = fields.value("tool_choice")
    if choice is not None and choice not in _TOOL_CHOICES:
        raise wrong_field("tool_choice", "only none and auto are supported: no answer is forced to call a tool", choice)
    variables: dict[str, Any] = {}
    for name in ("tools", "documents"):
        entries = fields.value(name)
        if entries is None or entries == []:
            continue
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise wrong_field(name, "expected a list of objects", entries)
        variables[name] = entries
    if choice == "none":
        variables.pop("tools", None)
    effort = fields.text("reasoning_effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise wrong_field("reasoning_effort", f"expected one of {', '.join(_EFFORTS)}", effort)
        variables["reasoning_effort"] = effort
    if fields.value("add_generation_prompt") is not None:
        variables["add_generation_prompt"] = fields.flag("add_generation_prompt")
    more = fields.value("chat_template_kwargs")
    if more is not None and (not isinstance(more, dict) or "messages" in more):
        raise wrong_field("chat_template_kwargs", "expected an object without messages", more)
    return {**variables, **(more or {})}


def _parse_message(where: str, message: object) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong_field(where, "expected an object with role and content", message)
    role = message.get("role")
    if role not in _MESSAGE_ROLES:
        raise wrong_field(f"{where}.role", f"expected one of {', '.join(_MESSAGE_ROLES)}", role)
    for name, value in message.items():
        if name not in _MESSAGE_FIELDS and value not in (None, []):
            raise ApiError(400, f"{where}: messages with {describe_json(name)} are not supported", param=where)
    calls = _parse_calls(where, message.get("tool_calls"))
    content = message.get("content")
    parsed = {
        "role": "system" if role == "developer" else role,
        "content": "" if content is None and calls else _parse_content(where, content),
        **{name: message[name] for name in _MESSAGE_FIELDS[2:] if message.get(name) not in (None, [])},
    }
    return {**parsed, "tool_calls": calls} if calls else parsed


def _parse_calls(where: str, calls: object) -> list[dict[str, Any]]:
    """Calls of tools, with arguments as objects: OpenAI's API has them as a text of JSON, and templates as objects."""
    if calls in (None, []):
        return []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise wrong_field(f"{where}.tool_calls", "expected a list of objects", calls)
    return [_parse_call(call) for call in calls]


def _parse_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = parse_json(function["arguments"] or "{}")
    except ValueError:  # what a model has said, whatever it is
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong_field(f"{where}.content", "expected a text", content)
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise wrong_field(f"{where}.content", "only parts of the type text are supported", content)
    return "".join(map(str, texts))
