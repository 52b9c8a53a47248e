"""The limits of one model. docs/language.md lists them, and errors name them."""

from __future__ import annotations

from typing import Final

TEXT_CHARACTERS: Final = 1 << 20
"""Longest model text."""

STATEMENT_TOKENS: Final = 50_000
"""Largest number of tokens of one statement, bodies left out."""

NAME_CHARACTERS: Final = 100
"""Longest name."""

NESTING: Final = 50
"""Deepest nesting of brackets and braces, and of operands in one statement."""

MAX_NESTING: Final = 80
"""Deepest nesting of blocks, repeats and expressions when blocks are applied."""

INTEGER_BOUND: Final = 1 << 63
"""All integers are smaller in magnitude; so is every tensor in bytes."""

LIST_ITEMS: Final = 100_000
"""Longest list that a parameter expression may build."""

FULL_NAME_CHARACTERS: Final = 1_000
"""Longest name of a tensor in the graph, including the names of the blocks around it; and of a weight in its file."""

STRING_CHARACTERS: Final = 10_000
"""Longest string that a parameter expression may build."""

RANK: Final = 32
"""Largest number of dimensions of a tensor; numpy has the same limit."""

NODES: Final = 20_000
"""Largest number of operators in one graph."""

MAX_UNROLLED_STEPS: Final = 200_000
"""Largest number of statements and expressions that are evaluated while blocks and repeats are unrolled."""

EQUATION_TERMS: Final = 1_000
"""Largest number of scalar operations in one index equation."""

USED_FILES: Final = 16
"""Largest number of files whose blocks a model uses."""
