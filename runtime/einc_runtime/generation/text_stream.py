"""Text as it is made: whole characters only, and nothing of what may turn out to be the beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einc_runtime.generation.tokenizer import TextTokenizer


class TextStream:
    """The text of one sequence. `push` and `finish` return what is new and certain."""

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = tokenizer.decode_stream()
        self._tokens: list[int] = []
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
        start = max(0, self._sent)
        self._decoded += self._decoder(token)
        stops_at = [at for stop in self._stops if (at := self._decoded.find(stop, start)) >= 0]
        if stops_at:
            self.stopped = True
            self._decoded = self._decoded[: min(stops_at)]
            return self._send(len(self._decoded))
        return self._send(len(self._decoded) - self._count_held())

    def finish(self) -> str:
        """What was held back, with marks in place of incomplete characters."""
        if not self.stopped:
            decoded = self._tokenizer.decode(self._tokens)
            if decoded.startswith(self._decoded):
                self._decoded = decoded
        return self._send(len(self._decoded))

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
