"""What a published model's folder says about text: its tokenizer, the tokens that end a text, its chat template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from einc_runtime.errors import ArrayFault, ReadFault, UsageFault
from einc_runtime.execution.data.gguf_file import is_gguf
from einc_runtime.generation.gguf_texts import TEXT_FILES, TOKENIZER, GgufTexts
from einc_runtime.generation.sampling import Sampling
from einc_runtime.generation.tokenizer import TextTokenizer
from einc_runtime.strict_json import parse_json
from einc_runtime.text import escape_text

MAX_FOLDER_FILE_BYTES = 16 << 20
"""Bytes of a configuration or template; tokenizer_config.json may list thousands of added tokens."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
"""Flags of sentence-transformers before version 5.4, which then has a name in `pooling_mode`."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template, the variables that it may use, and the file that it is from. Where there are several, `with_tools` is
    the one for conversations with tools."""

    text: str
    variables: Mapping[str, str]
    file: str
    with_tools: str = ""

    def choose(self, variables: Mapping[str, Any]) -> str:
        """The template of a conversation with these variables, as transformers chooses it."""
        return (self.with_tools if variables.get("tools") else "") or self.text


@dataclass(frozen=True, slots=True)
class Pooling:
    """How hidden states become one vector: `kind` is mean or cls."""

    kind: str
    is_normalized: bool


class ModelFolder:
    """The files beside a model's weights, or what a GGUF file says in their place; those of the folder `tokenizer` come
    first. Nothing in them is executed but a chat template, in its sandbox."""

    def __init__(self, folder: str, tokenizer: str | None = None) -> None:
        self._folder = folder
        self._directories = [directory for directory in (tokenizer, folder) if directory is not None]
        self._gguf = GgufTexts(folder) if is_gguf(folder) else None

    def read_tokenizer(self) -> TextTokenizer:
        """Raises UsageFault where there is no tokenizer.json."""
        if (file := self._find(TOKENIZER)) is None:
            raise UsageFault(
                "there is no tokenizer.json", where=self._folder, hint="--ids reads prompts that are tokens already"
            )
        return TextTokenizer(self._folder if self._is_inside(file) else file)

    def read_end_tokens(self, tokenizer: TextTokenizer | None = None) -> tuple[int, ...]:
        """The tokens that end a text: what generation_config.json says, else config.json; and the end token that
        tokenizer_config.json names, where a `tokenizer` knows it."""
        tokens: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = self._read_json(name, finite=False).get("eos_token_id")
            if value is not None:
                tokens = value if isinstance(value, list) else [value]
                if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
                    raise ArrayFault("eos_token_id: expected tokens", where=self._find(name))
                break
        named = self._read_special_tokens().get("eos_token")
        known = tokenizer.find_token(named) if tokenizer is not None and named is not None else None
        return tuple(tokens if known is None or known in tokens else [*tokens, known])

    def read_sampling(self) -> Sampling:
        """How tokens are chosen where nobody says it: as generation_config.json says. They are drawn if its do_sample
        is true; otherwise the most likely one is taken, after the repetition penalty."""
        settings = self._read_json("generation_config.json", finite=False)
        is_drawn = settings.get("do_sample") is True
        where = self._find("generation_config.json")
        names = (
            ("temperature", "top_p", "top_k", "min_p", "repetition_penalty") if is_drawn else ("repetition_penalty",)
        )
        stated = {name: settings[name] for name in names if settings.get(name) is not None}
        for name, value in stated.items():
            if not isinstance(value, int if name == "top_k" else int | float) or isinstance(value, bool):
                raise ArrayFault(f"{name}: expected a number", where=where)
        try:
            return Sampling(**{"temperature": 1.0 if is_drawn else 0.0, **stated})
        except UsageFault as fault:
            raise ArrayFault(fault.message, where=where) from None

    def read_pooling(self) -> Pooling:
        """How an encoder's hidden states become one vector, as sentence-transformers says it in modules.json.

        Without this file, they are averaged and scaled to length 1. Raises UsageFault for what there is not.
        """
        modules = self._read_json("modules.json", list)
        if not modules:
            return Pooling("mean", True)
        kinds = [str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
        where = self._find("modules.json")
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise UsageFault(
                f"its modules are {', '.join(map(escape_text, kinds))}",
                where=where,
                hint="a Transformer, Pooling and Normalize are supported",
            )
        path = modules[1].get("path")
        if not isinstance(path, str) or path != os.path.basename(path) or path in ("", ".."):
            raise ArrayFault("expected a folder beside it as the path of Pooling", where=where)
        settings = self._read_json(os.path.join(path, "config.json"))
        flags = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True]
        chosen = sorted(_POOLINGS.get(name, name) for name in flags)
        if (named := settings.get("pooling_mode")) is not None:
            chosen = list(map(str, named)) if isinstance(named, list) else [str(named)]
        if len(chosen) != 1 or chosen[0] not in _POOLINGS.values():
            raise UsageFault(
                f"it pools by {', '.join(map(escape_text, chosen)) or 'nothing'}",
                where=self._find(os.path.join(path, "config.json")),
                hint="mean and cls are supported (pooling_mode_mean_tokens and pooling_mode_cls_token)",
            )
        return Pooling(chosen[0], len(kinds) == 3)

    def read_chat_template(self) -> ChatTemplate:
        """Raises UsageFault where there is none."""
        settings, variables = self._read_json("tokenizer_config.json"), self._read_special_tokens()
        if (file := self._find("chat_template.jinja")) is not None:
            return ChatTemplate(self._read(file).decode("utf-8", "replace"), variables, file)
        template, with_tools = settings.get("chat_template"), None
        if isinstance(template, list):  # several, with names
            named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
            template, with_tools = named.get("default"), named.get("tool_use")
        if not isinstance(template, str):
            raise UsageFault(
                "there is no chat template", where=self._folder, hint="leave --chat out: it is no chat model"
            )
        file = self._find("tokenizer_config.json") or self._folder
        return ChatTemplate(template, variables, file, with_tools if isinstance(with_tools, str) else "")

    def _read_special_tokens(self) -> dict[str, str]:
        """The special tokens that tokenizer_config.json names; what it lacks, special_tokens_map.json may have."""
        named = {}
        for file in ("special_tokens_map.json", "tokenizer_config.json"):
            settings = self._read_json(file)
            for name in _SPECIAL_TOKENS:
                setting = settings.get(name)
                text = setting.get("content") if isinstance(setting, dict) else setting
                if isinstance(text, str):
                    named[name] = text
        return named

    def _read_json(self, name: str, kind: type = dict, *, finite: bool = True) -> Any:
        """The object, or the list, in a file; an empty one where there is no such file."""
        file = self._find(name)
        if file is None:
            return kind()
        try:
            document = parse_json(self._read(file), finite=finite)
        except ValueError as error:
            raise ArrayFault(str(error), where=file) from None
        if not isinstance(document, kind):
            raise ArrayFault(f"expected {'a list' if kind is list else 'an object in braces'}", where=file)
        return document

    def _find(self, name: str) -> str | None:
        """The path of a file; None where there is none. Files that a GGUF file stands for are taken to be in it."""
        paths = [os.path.join(directory, name) for directory in self._directories]
        inside = self._gguf is not None and name in TEXT_FILES
        return next((path for path in paths if os.path.isfile(path)), paths[-1] if inside else None)

    def _is_inside(self, file: str) -> bool:
        return self._gguf is not None and not os.path.isfile(file)

    def _read(self, file: str) -> bytes:
        if self._gguf is not None and self._is_inside(file):
            return self._gguf.read(os.path.basename(file))
        with open(file, "rb") as stream:
            data = stream.read(MAX_FOLDER_FILE_BYTES + 1)
        if len(data) > MAX_FOLDER_FILE_BYTES:
            raise ReadFault(f"it has more than {MAX_FOLDER_FILE_BYTES >> 20} MiB", where=file)
        return data
