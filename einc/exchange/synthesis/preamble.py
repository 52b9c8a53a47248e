"""The preamble of a text for synthesis: partitions declared by size stay open."""

from __future__ import annotations

import dataclasses

from einc.exchange.language.parser import parse
from einc.exchange.language.program import Partition, Program
from einc.exchange.language.resolve import ground, resolve
from einc.exchange.language.syntax import ProgramText
from einc.machines.model import Machine


def read_preamble(text: str, file: str = "<program>", machine: Machine | None = None) -> Program:
    """The program of a text as `synthesize` takes it."""
    return open_program(parse(text, file), machine)


def open_program(tree: ProgramText, machine: Machine | None = None) -> Program:
    """A program with its open partitions left open; its body is kept only where every membership is explicit.

    Raises ProgramError for declarations that make no sense.
    """
    if all(partition.members is not None for partition in tree.partitions):
        return resolve(tree, machine)
    resolve(dataclasses.replace(tree, actions=(), requirements=tree.requirements[:0]), machine)  # checks it
    members = {entry.name: entry.members or () for entry in tree.partitions}
    bare = ground(dataclasses.replace(tree, actions=()), members)
    return dataclasses.replace(
        bare, partitions=tuple(Partition(entry.name, entry.size, entry.members) for entry in tree.partitions)
    )
