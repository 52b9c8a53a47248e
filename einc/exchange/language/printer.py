"""Exchange programs as canonical text: explicit sizes and memberships, one action a line.

`parse` and `resolve` of the text give the program back, provided that it names no action, site or target twice.
"""

from __future__ import annotations

from einc.exchange.language.program import Program
from einc.exchange.language.words import action_text, holding_text, partition_text, requirement_text, targets_text

_JOIN = ";\n     "  # a newline after a semicolon continues the declaration


def print_program(program: Program) -> str:
    """The text of a program, ending in a newline."""
    lines = []
    if program.gpus is not None:
        lines.append(f"GPUS: {targets_text(program.gpus)}")
    if program.partitions:
        lines.append(f"PARTITIONS: {' '.join(map(partition_text, program.partitions))}")
    lines.append(f"IN:  {_JOIN.join(map(holding_text, program.holdings))}")
    lines.append(f"OUT: {_JOIN.join(map(requirement_text, program.requirements))}")
    if program.actions:
        lines.append("")
        lines += map(action_text, program.actions)
    return "\n".join(lines) + "\n"
