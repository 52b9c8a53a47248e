"""The search for fast exchange programs; `driver.py` describes its stages."""

from einc.exchange.synthesis.driver import Progress, Synthesis, SynthesisOptions, synthesize, synthesize_naive

__all__ = ["Progress", "Synthesis", "SynthesisOptions", "synthesize", "synthesize_naive"]
