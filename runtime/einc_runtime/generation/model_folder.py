"""What a published model's folder says about text: its tokenizer, the tokens that end a text, its chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from einc_runtime.errors import ArrayFault, ReadFault, UsageFault
from einc_runtime.generation.tokenizer import TextTokenizer
from einc_runtime.strict_json import parse_json

MAX_BYTES = 16 << 20
"""Bytes of a configuration or template; tokenizer_config.json may list thousands of added tokens."""

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template, the variables that it may use, and the file that it is from."""

    text: str
    variables: Mapping[str, str]
    file: str


class ModelFolder:
    """The files beside a model's weights. Nothing in them is executed but a chat template, in its sandbox."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read_tokenizer(self) -> TextTokenizer:
        """Raises UsageFault where there is no tokenizer.json."""
        file = os.path.join(self._folder, "tokenizer.json")
        if not os.path.isfile(file):
            raise UsageFault(
                "there is no tokenizer.json", where=self._folder, hint="--ids reads prompts that are tokens already"
            )
        return TextTokenizer(file)

    def read_end_tokens(self) -> tuple[int, ...]:
        """The tokens that end a text: what generation_config.json says, else config.json."""
        for name in ("generation_config.json", "config.json"):
            found = self._read_json(name).get("eos_token_id")
            tokens = found if isinstance(found, list) else [found]
            if found is not None:
                if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
                    raise ArrayFault("eos_token_id: expected tokens", where=os.path.join(self._folder, name))
                return tuple(tokens)
        return ()

    def read_chat_template(self) -> ChatTemplate:
        """Raises UsageFault where there is none."""
        settings = self._read_json("tokenizer_config.json")
        variables = {}
        for name in _SPECIAL:
            found = settings.get(name)
            text = found.get("content") if isinstance(found, dict) else found
            if isinstance(text, str):
                variables[name] = text
        file, name = os.path.join(self._folder, "chat_template.jinja"), "tokenizer_config.json"
        if os.path.isfile(file):
            return ChatTemplate(self._read("chat_template.jinja").decode("utf-8", "replace"), variables, file)
        template = settings.get("chat_template")
        if isinstance(template, list):  # several, with names
            named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default")
        if not isinstance(template, str):
            raise UsageFault(
                "there is no chat template", where=self._folder, hint="leave --chat out: it is no chat model"
            )
        return ChatTemplate(template, variables, os.path.join(self._folder, name))

    def _read_json(self, name: str) -> dict[str, Any]:
        """The object in a file; an empty one where there is no such file."""
        file = os.path.join(self._folder, name)
        if not os.path.isfile(file):
            return {}
        try:
            document = parse_json(self._read(name))
        except ValueError as error:
            raise ArrayFault(str(error), where=file) from None
        if not isinstance(document, dict):
            raise ArrayFault("expected an object in braces", where=file)
        return document

    def _read(self, name: str) -> bytes:
        file = os.path.join(self._folder, name)
        with open(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ReadFault(f"it has more than {MAX_BYTES >> 20} MiB", where=file)
        return data
