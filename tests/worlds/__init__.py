"""Seeded worlds: the CPU executor and the writing of files where a seed decides what happens when (docs/trust.md)."""
