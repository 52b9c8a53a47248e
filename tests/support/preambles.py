"""Preambles of exchange programs from their texts, as `synthesize` takes them."""

from einc.exchange.language.parser import parse
from einc.exchange.language.resolve import resolve_preamble


def read_preamble(text, file="<program>", machine=None):
    return resolve_preamble(parse(text, file), machine)
