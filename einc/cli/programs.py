"""Reading exchange programs, and the collective algorithms of other libraries in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einc.cli.files import read_text

if TYPE_CHECKING:
    from einc.exchange.collectives.algorithm import CollectiveAlgorithm
    from einc.exchange.language.syntax import ProgramTree

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

    text = read_text(file)
    form = detect_format(text)
    if form != EXPROG:
        text = print_algorithm(parse_algorithm(text, file, form), chunk)
    return parse(text, file)


def print_algorithm(algorithm: CollectiveAlgorithm, chunk: int | None) -> str:
    """The text of the exchange program of an algorithm. Raises ProgramError for one that is not valid."""
    from einc.exchange.collectives.importing import DEFAULT_CHUNK, convert_algorithm
    from einc.exchange.language.printer import print_program

    return print_program(convert_algorithm(algorithm, DEFAULT_CHUNK if chunk is None else chunk))


def write_algorithm(algorithm: CollectiveAlgorithm, form: str) -> str:
    """The text of an algorithm in a format of another library."""
    if form == MSCCL:
        from einc.exchange.collectives.msccl_xml import write_msccl_xml

        return write_msccl_xml(algorithm)
    from einc.exchange.collectives.mscclpp_writing import write_mscclpp_json

    return write_mscclpp_json(algorithm)
