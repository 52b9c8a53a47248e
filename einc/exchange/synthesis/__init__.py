"""The search for fast exchange programs; `driver.py` describes its stages."""

from einc.exchange.language.resolve import read_preamble, resolve_preamble
from einc.exchange.synthesis.commands import CommandProposer
from einc.exchange.synthesis.driver import Progress, Synthesis, SynthesisOptions, synthesize, synthesize_naive
from einc.exchange.synthesis.proposers import Proposer, TextProposer

__all__ = [
    "CommandProposer",
    "Progress",
    "Proposer",
    "Synthesis",
    "SynthesisOptions",
    "TextProposer",
    "read_preamble",
    "resolve_preamble",
    "synthesize",
    "synthesize_naive",
]
