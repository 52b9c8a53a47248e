"""Synthesis of exchange programs: see `driver.py`."""

from einc.exprog.synthesis.driver import Progress, Synthesis, synthesize
from einc.exprog.synthesis.preamble import open_program, read_preamble

__all__ = ["Progress", "Synthesis", "open_program", "read_preamble", "synthesize"]
