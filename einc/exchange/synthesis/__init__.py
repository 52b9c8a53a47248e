"""Synthesis of exchange programs: see `driver.py`."""

from einc.exchange.synthesis.driver import Progress, Synthesis, naive_synthesis, synthesize
from einc.exchange.synthesis.preamble import open_program, read_preamble
from einc.exchange.synthesis.proposers import Command, Proposer, Text

__all__ = [
    "Command",
    "Progress",
    "Proposer",
    "Synthesis",
    "Text",
    "naive_synthesis",
    "open_program",
    "read_preamble",
    "synthesize",
]
