"""Synthesis of exchange programs: see `driver.py`."""

from einc.exchange.language.resolve import read_preamble, resolve_preamble
from einc.exchange.synthesis.driver import Progress, Synthesis, naive_synthesis, synthesize
from einc.exchange.synthesis.proposers import Command, Proposer, Text

__all__ = [
    "Command",
    "Progress",
    "Proposer",
    "Synthesis",
    "Text",
    "naive_synthesis",
    "read_preamble",
    "resolve_preamble",
    "synthesize",
]
