"""Conversations of requests: messages as chat templates take them, and what else a template is told."""

from __future__ import annotations

from typing import Any

from einc.serving.errors import ApiError
from einc.serving.fields import RequestFields, wrong_field
from einc_runtime.generation.chat import Message
from einc_runtime.strict_json import describe_json, parse_json

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
    """A text, or parts of one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong_field(f"{where}.content", "expected a text", content)
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise wrong_field(f"{where}.content", "only parts of the type text are supported", content)
    return "".join(map(str, texts))
