"""Text as it is made: whole characters only, and nothing of what may turn out to be the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einc_runtime.generation.tokenizer import TextTokenizer


BROKEN = "\ufffd"
"""What stands for bytes that are no text, or not yet."""
MAX_HELD_BYTES = 16
"""Tokens of single bytes that are held back while more of them come: if one of them is no text, all are none."""
MAX_HELD = 32
"""Tokens that are held back while they end within a character, which has 4 bytes at most."""
CONTEXT = 8
"""Tokens of a prompt that decide how the first new one is written: whether with a space before it."""


class TextStream:
    """The text of one sequence. `push` and `finish` return what is new and certain.

    The text goes on from that of the tokens of its prompt, if there are any: both together are the text of all tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop for stop in stops if stop)
        # The tokens that a text of new ones is decoded with, and how many of these have been decoded for good.
        self._tokens = list(prompt[-CONTEXT:])
        self._known = len(self._tokens)
        self._is_first = True
        self._decoded = ""
        self._sent = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All text so far that is certain."""
        return self._decoded[: self._sent]

    def push(self, token: int) -> str:
        """Adds a token. Afterwards `stopped` says whether the text has reached a stop text, which is left out."""
        self._tokens.append(token)
        start = self._sent
        self._decoded += self._decode()
        stops_at = [at for stop in self._stops if (at := self._decoded.find(stop, start)) >= 0]
        if stops_at:
            self.stopped = True
            self._decoded = self._decoded[: min(stops_at)]
            return self._send(len(self._decoded))
        return self._send(len(self._decoded) - self._count_held())

    def finish(self) -> str:
        """What was held back, with marks in place of incomplete characters."""
        if not self.stopped:
            self._decoded += self._decode(is_last=True)
        return self._send(len(self._decoded))

    def _decode(self, *, is_last: bool = False) -> str:
        """What the tokens that are not known yet add to the text: nothing while later ones may change it, unless there
        are none. As tokenizers decide by its neighbours how a token is written, those that were decoded the time before
        are decoded again."""
        before = self._tokenizer.decode(self._tokens[: self._known])
        before = before.rstrip(BROKEN) if self._is_first else before  # a prompt may end within a character
        text = self._tokenizer.decode(self._tokens)
        held = len(self._tokens) - self._known
        within = (text.endswith(BROKEN) and held < MAX_HELD) or (
            held and held < MAX_HELD_BYTES and self._tokens[-1] in self._tokenizer.byte_tokens
        )
        if (within and not is_last) or len(text) <= len(before):
            return ""
        if not text.startswith(before):  # bytes after it have made it one that is broken
            before, text = "", self._tokenizer.decode(self._tokens[self._known :])
        del self._tokens[: self._known]
        self._known, self._is_first = len(self._tokens), False
        return text[len(before) :]

    def _send(self, end: int) -> str:
        start, self._sent = self._sent, max(end, self._sent)
        return self._decoded[start : self._sent]

    def _count_held(self) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        unsent = len(self._decoded) - self._sent
        for count in range(min(longest, unsent), 0, -1):
            if any(stop.startswith(self._decoded[-count:]) for stop in self._stops):
                return count
        return 0
