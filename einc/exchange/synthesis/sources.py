"""Where proposals come from, as a user names it: a file, `command:LINE`, or `llm:URL?model=NAME`."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from einc.errors import UsageError
from einc.exchange.synthesis.commands import CommandProposer
from einc.exchange.synthesis.proposers import Proposer, TextProposer


def make_proposer(source: str, read_text: Callable[[str], str]) -> Proposer:
    """The proposer that a source names; `read_text` reads a file. Raises UsageError."""
    kind, _, argument = source.partition(":")
    if kind == "llm":
        from einc.exchange.synthesis.endpoint import read_endpoint

        return read_endpoint(argument)
    if kind != "command":
        return TextProposer(read_text(source))
    try:
        arguments = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"--propose {source[:200]!r}: {error}") from None
    if not arguments:
        raise UsageError(f"--propose {source[:200]!r}: it names no command", hint="write command:LINE")
    return CommandProposer(tuple(arguments))
