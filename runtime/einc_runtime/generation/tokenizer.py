"""A model's own tokenizer, from its tokenizer.json, or from the vocabulary of a GGUF file: the library `tokenizers`
reads it, and executes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from einc_runtime.errors import ArrayFault, MissingFault, ReadFault
from einc_runtime.execution.data.gguf_file import is_gguf
from einc_runtime.generation.gguf_texts import TOKENIZER, GgufTexts
from einc_runtime.installing import suggest_extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENIZER_BYTES = 256 << 20
"""Bytes of a tokenizer.json; the largest published ones have about 35 MB."""
MAX_PROMPT = 4 << 20
"""Characters of a prompt: more than any model reads, and few enough to be cut into tokens in seconds."""


class TextTokenizer:
    """Text to tokens, and tokens to text. `file` is read at once; `document` is the tokenizer.json as a text.

    `byte_tokens` are those that stand for one byte each, where what has no other token is written with them.
    """

    def __init__(self, file: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            hint = suggest_extra("generate")
            raise MissingFault("reading tokenizer.json needs the package tokenizers", hint=hint) from None
        data = GgufTexts(file).read(TOKENIZER) if is_gguf(file) else _read_bounded(file)
        try:
            self.document = data.decode("utf-8")
            self._tokenizer: Tokenizer = Tokenizer.from_str(self.document)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
        except Exception as error:  # the library raises nothing more special
            raise ArrayFault(f"this is no tokenizer: {str(error)[:200]}", where=file) from None
        singles = {self._tokenizer.token_to_id(f"<0x{value:02X}>") for value in range(256)}
        self.byte_tokens = frozenset(singles) if None not in singles else frozenset[int]()

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; with `special`, also those that the model expects around it."""
        if len(text) > MAX_PROMPT:
            raise ArrayFault(f"a prompt of {len(text):,} characters is too long: at most {MAX_PROMPT:,} are read")
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)
        except Exception as error:
            raise ArrayFault(f"the tokenizer cannot read a prompt: {str(error)[:200]}") from None

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; with `special`, also that of special ones. Bytes that are no text are U+FFFD."""
        try:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))
        except Exception as error:
            raise ArrayFault(f"the tokenizer has no text for its tokens: {str(error)[:200]}") from None

    def find_token(self, text: str) -> int | None:
        """The token whose name is exactly this text, None where there is none."""
        number = self._tokenizer.token_to_id(text)
        return None if number is None else int(number)

    def find_special(self, text: str) -> int | None:
        """The special token of this text, which no text that is made contains; None where there is none."""
        added = self._tokenizer.get_added_tokens_decoder().items()
        return next((int(number) for number, token in added if token.special and token.content == text), None)


def _read_bounded(file: str) -> bytes:
    with open(file, "rb") as stream:
        data = stream.read(MAX_TOKENIZER_BYTES + 1)
    if len(data) > MAX_TOKENIZER_BYTES:
        raise ReadFault(f"it has more than {MAX_TOKENIZER_BYTES >> 20} MiB", where=file)
    return data
