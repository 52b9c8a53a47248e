"""Hostile files: mutations of real ones, each of which must be accepted or refused with one error (docs/trust.md)."""
