"""Synthesis of exchange programs: see `driver.py`."""

from einc.exprog.synthesis.driver import Progress, Synthesis, synthesize
from einc.exprog.synthesis.preamble import open_program, read_preamble
from einc.exprog.synthesis.proposers import Command, Proposer, Text

__all__ = ["Command", "Progress", "Proposer", "Synthesis", "Text", "open_program", "read_preamble", "synthesize"]
