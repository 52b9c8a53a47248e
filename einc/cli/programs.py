"""Reading exchange programs for a machine, and the collective algorithms of other libraries in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from einc.cli.files import read_text
from einc.errors import UsageError

if TYPE_CHECKING:
    from einc.errors import ProgramError
    from einc.exchange.collectives.algorithm import CollectiveAlgorithm
    from einc.exchange.language.program import Program
    from einc.exchange.language.syntax import ProgramTree
    from einc.machines.model import Machine

EXPROG, MSCCL, MSCCLPP = "exprog", "msccl-xml", "mscclpp-json"
FOREIGN = (MSCCL, MSCCLPP)
"""Formats of other libraries, as `--format` names them."""


def detect_format(text: str) -> str:
    """What a text is, by its first character: no exchange program begins with `<` or `{`."""
    return {"<": MSCCL, "{": MSCCLPP}.get(text.lstrip("\ufeff \t\r\n")[:1], EXPROG)


def parse_algorithm(text: str, file: str, form: str) -> CollectiveAlgorithm:
    """The algorithm in a text of another library. Raises ProgramError, with its place, where there is none."""
    if form == MSCCL:
        from einc.exchange.collectives.msccl_xml import read_msccl_xml

        return read_msccl_xml(text, file)
    from einc.exchange.collectives.mscclpp_json import read_mscclpp_json

    return read_mscclpp_json(text, file)


def read_program_tree(file: str, chunk: int | None = None) -> ProgramTree:
    """The program in a file, or that of a valid algorithm whose chunks have `chunk` bytes."""
    from einc.exchange.language.parser import parse

    if file.endswith(".ein"):
        hint = "`einc compile MODEL --emit exprog` prints the programs of its plan"
        raise UsageError("this is a model, and no exchange program", where=file, hint=hint)
    text = read_text(file)
    form = detect_format(text)
    if form != EXPROG:
        text = print_algorithm(parse_algorithm(text, file, form), chunk)
    return parse(text, file)


def print_algorithm(algorithm: CollectiveAlgorithm, chunk: int | None) -> str:
    """The text of the exchange program of an algorithm. Raises ProgramError for one that is not valid."""
    from einc.exchange.collectives.translating import DEFAULT_CHUNK, convert_algorithm
    from einc.exchange.language.printer import print_program

    return print_program(convert_algorithm(algorithm, DEFAULT_CHUNK if chunk is None else chunk))


def write_algorithm(algorithm: CollectiveAlgorithm, form: str) -> str:
    """The text of an algorithm in a format of another library."""
    if form == MSCCL:
        from einc.exchange.collectives.msccl_xml import write_msccl_xml

        return write_msccl_xml(algorithm)
    from einc.exchange.collectives.mscclpp_writing import write_mscclpp_json

    return write_mscclpp_json(algorithm)


def load_program_machine(name: str, ideal: bool, tree: ProgramTree) -> Machine:
    """The machine of that name; the host has all the sites that a program names."""
    from einc.machines.load import count_host_cores, load_machine
    from einc.machines.schema import MAX_SITES
    from einc_runtime.plan.schema import HOST

    sites = min(max(count_host_cores(), tree.span), MAX_SITES) if name == HOST else None
    machine = load_machine(name, sites)
    return machine.ideal() if ideal else machine


def resolve_and_check(tree: ProgramTree, machine: Machine | None, naive: bool) -> tuple[Program, list[ProgramError]]:
    """The ground program of a text, and all faults of it, each with its place in the file."""
    from einc.exchange.language.checker import check
    from einc.exchange.language.resolve import locate_fault, resolve_located

    if naive and machine is None:
        raise click.UsageError("--naive needs a machine: give -m")
    resolved = resolve_located(tree, machine, switches=True)
    program = resolved.program
    if naive and machine is not None:
        from einc.exchange.naive import build_naive_body

        program = build_naive_body(program, machine)
    faults = check(program, machine).faults
    return program, [locate_fault(resolved, fault.message, fault.subject) for fault in faults]
