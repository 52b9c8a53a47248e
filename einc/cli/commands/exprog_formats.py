"""`einc exprog import` and `einc exprog export`: collective algorithms of MSCCL and MSCCL++ as exchange programs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from einc.cli.files import read_text
from einc.cli.options import MEMORY_SIZE, machine_option
from einc.cli.programs import EXPROG, FOREIGN, MSCCLPP, detect_format, parse_algorithm, print_algorithm, write_algorithm
from einc.errors import ProgramError
from einc_runtime.cli import output
from einc_runtime.cli.base import command, json_option

if TYPE_CHECKING:
    from einc.exchange.collectives.algorithm import CollectiveAlgorithm

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _add_format(function: _Command, *, required: bool) -> _Command:
    text = "The format of the other file." if required else "The format of the other file.  [default: what it is]"
    return click.option("--format", "form", type=click.Choice(FOREIGN), required=required, help=text)(function)


def chunk_option(function: Any) -> Any:
    """`--chunk SIZE`, for files that say nothing about sizes."""
    text = "The bytes of a chunk of an algorithm, whose file has none: 64KiB.  [default: 1MB]"
    return click.option("--chunk", type=MEMORY_SIZE, help=text)(function)


@command("import", "einc exprog import allreduce.xml -o allreduce.exprog", "einc exprog import plan.json --chunk 64KiB")
@click.argument("file", metavar="FILE")
@functools.partial(_add_format, required=False)
@chunk_option
@click.option("-o", "--output", "target", metavar="FILE", help="Write the program; otherwise it is printed.")
@json_option
def import_command(file: str, form: str | None, chunk: int | None, target: str | None, as_json: bool) -> None:
    """Make an exchange program of a collective algorithm: an MSCCL algorithm or an MSCCL++ execution plan.

    The algorithm is proved first: no deadlock, no race, and every contribution exactly once in every result.
    """
    _require_target(target, as_json, file)
    source = read_text(file)
    form = form or detect_format(source)
    if form == EXPROG:
        raise ProgramError(
            "this is neither MSCCL's XML nor MSCCL++'s JSON", where=file, hint="an exchange program needs no import"
        )
    algorithm = parse_algorithm(source, file, form)
    text = print_algorithm(algorithm, chunk)
    _give(algorithm, text, "program", target, as_json)


@command(
    "export",
    "einc exprog export allreduce.exprog --format msccl-xml -o allreduce.xml",
    "einc exprog export fast.exprog --format mscclpp-json",
)
@click.argument("file", metavar="FILE")
@functools.partial(_add_format, required=True)
@machine_option()
@click.option("--drop-waits", is_flag=True, help="Leave out waits (after), which decide on speed alone.")
@click.option("-o", "--output", "target", metavar="FILE", help="Write the algorithm; otherwise it is printed.")
@json_option
def export_command(
    file: str, form: str, machine: str | None, drop_waits: bool, target: str | None, as_json: bool
) -> None:
    """Write an exchange program of a collective as an MSCCL algorithm or an MSCCL++ execution plan.

    The collective is recognized from IN and OUT. What is written is proved as `einc exprog check` does.
    """
    from einc.errors import InternalError
    from einc.exchange.collectives.translating import convert_program
    from einc.exchange.collectives.verifying import verify_algorithm
    from einc.exchange.language.closure import strip_waits
    from einc.exchange.language.parser import parse
    from einc.exchange.language.resolve import resolve

    _require_target(target, as_json, file, machine)
    model = None
    if machine is not None:
        from einc.machines.load import load_machine

        model = load_machine(machine)
    program = resolve(parse(read_text(file), file), model)
    if drop_waits:
        program = dataclasses.replace(program, actions=tuple(dict.fromkeys(map(strip_waits, program.actions))))
    algorithm = convert_program(program, one_block=form == MSCCLPP)
    text = write_algorithm(algorithm, form)
    faults = verify_algorithm(parse_algorithm(text, "what was written", form)).faults
    if faults:
        raise InternalError(f"the algorithm that was written is not valid: {faults[0].message}")
    _give(algorithm, text, "text", target, as_json)


def _require_target(target: str | None, as_json: bool, *reads: str | None) -> None:
    if target == output.STDOUT and as_json:
        raise click.UsageError("-o - writes the algorithm to standard output, which --json needs for itself")
    if target is not None:
        output.require_outputs([target], reads)


def _give(algorithm: CollectiveAlgorithm, text: str, field: str, target: str | None, as_json: bool) -> None:
    if target is not None:
        output.write_text(target, text)
    if as_json:
        collective = algorithm.collective
        document = {
            "collective": collective.kind,
            "gpus": collective.ranks,
            "chunks": collective.chunks // algorithm.splits,
        }
        output.say_json({**document, "steps": len(algorithm.steps), field: text})
    elif target is None:
        output.say(text)
