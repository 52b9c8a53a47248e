"""`einc exprog`: exchange programs as files of their own, checked, simulated and searched for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from einc.cli.commands.exprog_formats import chunk_option
from einc.cli.files import read_text, require_page
from einc.cli.options import SECONDS, machine_option
from einc.cli.programs import (
    EXPROG,
    detect_format,
    load_program_machine,
    parse_algorithm,
    read_program_tree,
    resolve_and_check,
)
from einc.errors import ProgramError, UsageError
from einc_runtime.cli import output
from einc_runtime.cli.base import LazyGroup, command, examples, json_option
from einc_runtime.cli.failures import CheckFailed
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc.exchange.language.program import Program
    from einc.exchange.language.syntax import ProgramTree
    from einc.machines.model import Machine

group = LazyGroup(
    "exprog",
    {
        "check": (f"{__name__}:check_command", "Prove that a program delivers what it promises."),
        "simulate": (f"{__name__}:simulate_command", "Run a program on a model of a machine and time it."),
        "optimize": (f"{__name__}:optimize_command", "Search for a fast body."),
        "bound": (f"{__name__}:bound_command", "Say how far a program is from the optimum on a machine."),
        "import": (f"{__name__}_formats:import_command", "Make a program of an algorithm of MSCCL or MSCCL++."),
        "export": (f"{__name__}_formats:export_command", "Write a program as an algorithm of MSCCL or MSCCL++."),
    },
    help="Check, simulate and optimize exchange programs. In their place, all commands but export also read algorithms"
    " of MSCCL (XML) and execution plans of MSCCL++ (JSON).",
    epilog=examples(
        "einc exprog check swap.exprog -m dgx-h100",
        "einc exprog simulate swap.exprog -m dgx-h100 --ideal",
        "einc exprog optimize swap.exprog -m dgx-h100 --ideal -o fast.exprog",
        "einc exprog check allreduce.xml",
    ),
)

_ideal = click.option("--ideal", is_flag=True, help="Assume no latencies, and peaks of GPUs and links.")
_switches = click.option("--switches", is_flag=True, help="Let the machine's NVSwitches (H100 and later) copy and add.")
_naive = click.option("--naive", is_flag=True, help="Replace the body with the naive one.")


@command("check", "einc exprog check swap.exprog -m dgx-h100")
@click.argument("file", metavar="FILE")
@machine_option()
@_ideal
@_naive
@json_option
def check_command(file: str, machine: str | None, ideal: bool, naive: bool, as_json: bool) -> None:
    """Prove that a program delivers what it promises: no atom counted twice, every requirement met, no action stuck.

    Without a machine, every pair of sites can talk. Of an algorithm of MSCCL or MSCCL++ it is also proved that no steps
    race and none waits for ever.
    """
    tree = _read_sound(file)
    model = load_program_machine(machine, ideal, tree) if machine is not None else None
    program, errors = resolve_and_check(tree, model, naive)
    faults = [{"message": error.message, "where": str(error.where)} for error in errors]
    document: dict[str, Any] = {"valid": not errors, "faults": faults, "program": _format_program(program)}
    document |= {"bound_ms": None, "bound_by": None, "rates": None if model is None else _name_rates(model)}
    if not errors and model is not None and as_json:
        document |= _describe_bound(tree, model)
    if errors:
        details = "\n".join(error.render() for error in errors)
        raise CheckFailed(f"{file} is not valid", document, details=details)
    if as_json:
        output.say_json(document)
    else:
        output.say(f"{file}: valid")


@command(
    "simulate",
    "einc exprog simulate swap.exprog -m dgx-h100 --ideal",
    "einc exprog simulate swap.exprog -m host --naive --json",
    "einc exprog simulate cube-mesh.exprog -m dgx-v100 --html mesh.html",
)
@click.argument("file", metavar="FILE")
@machine_option(required=True)
@_ideal
@_naive
@click.option("-o", "--output", "target", metavar="FILE", help="Write the program, with the memberships written out.")
@click.option("--html", metavar="FILE", help="Write a page that shows what moves when.")
@json_option
def simulate_command(
    file: str, machine: str, ideal: bool, naive: bool, target: str | None, html: str | None, as_json: bool
) -> None:
    """Run a program on a model of a machine and print its completion time, and what none can go below, in
    milliseconds."""
    from einc.exchange.naive import build_naive_body
    from einc.exchange.simulation.simulator import simulate

    targets = [path for path in (target, html) if path is not None]
    if targets.count(output.STDOUT) + as_json > 1:
        raise click.UsageError("-o -, --html - and --json all need standard output")
    output.require_outputs(targets, [file, machine])
    require_page(html)
    tree = read_program_tree(file)
    model = load_program_machine(machine, ideal, tree)
    program, errors = resolve_and_check(tree, model, naive)
    if errors:
        further = format_count(len(errors) - 1, "more fault")
        more = f"{further}: `einc exprog check` lists them" if len(errors) > 1 else None
        raise ProgramError(errors[0].message, where=errors[0].where, hint=more or errors[0].hint)
    completion = _describe_completion(simulate(program, model).completion_ms, model)
    text = _format_program(program)
    if target is not None:
        output.write_text(target, text)
    document = {"valid": True, **completion, **_describe_bound(tree, model), "splits": {}, "program": text}
    if html is not None:
        from einc.report.html.page import write_program_page

        naive_ms = simulate(build_naive_body(program, model), model).completion_ms
        exchange = {**document, "naive_ms": naive_ms, "bound_free_ms": None, "author": "user"}
        output.write_text(html, write_program_page(program, model, exchange, os.path.basename(file)))
    if as_json:
        output.say_json(document)
    elif output.STDOUT not in targets:
        taken = f"{completion['completion_ms']:.3f} ms{_describe_trust(completion)}, {_format_sizes(tree)}"
        output.say(f"{taken}\n{_format_bound(document)}")


@command(
    "optimize",
    "einc exprog optimize swap.exprog -m dgx-h100 -o fast.exprog",
    "einc exprog optimize swap.exprog -m dgx-h100 --propose 'llm:http://localhost:8080/v1?model=qwen3'",
)
@click.argument("file", metavar="FILE")
@machine_option(required=True)
@_ideal
@click.option("--time-limit", type=SECONDS, help="End the search after this time.")
@click.option(
    "--iterations",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="How many random changes of the best order to try.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seeds the random changes.")
@click.option(
    "--pieces",
    type=click.IntRange(min=1),
    help="Split no atom into more pieces than this: a few keep the program short, and 1 keeps atoms whole.",
)
@click.option(
    "--propose",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Candidates from a FILE, from command:LINE or from llm:URL?model=NAME.",
)
@click.option("--naive", is_flag=True, help="Do not search: take the naive body.")
@_switches
@click.option("-o", "--output", "target", metavar="FILE", help="Write the program found; otherwise it is printed.")
@json_option
def optimize_command(
    file: str,
    machine: str,
    ideal: bool,
    sources: tuple[str, ...],
    naive: bool,
    switches: bool,
    pieces: int | None,
    target: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Search for a fast body: how atoms are split, which routes their pieces take, and in which order.

    Partitions that are declared by size get their members too. A body in FILE is a candidate. The result is never
    slower than the naive body. The same FILE, machine, iterations and seed give the same program, unless the time limit
    or Ctrl-C ends the search: then the result is the best program found so far.

    Candidates from other sources are checked and timed like those of the search, and a line for each says what happened
    to it. The key for an endpoint is taken from EINC_LLM_KEY.
    """
    from einc.exchange.language.resolve import resolve_preamble
    from einc.exchange.synthesis import SynthesisOptions, synthesize, synthesize_naive
    from einc.exchange.synthesis.sources import make_proposer

    if naive and sources:
        raise click.UsageError("--naive takes no candidates: leave out --propose")
    if target == output.STDOUT and as_json:
        raise click.UsageError("-o - writes the program to standard output, which --json needs for itself")
    if target is not None:
        output.require_outputs([target], [file, machine, *sources])
    tree = read_program_tree(file)
    model = load_program_machine(machine, ideal, tree)
    switches = _uses_switches(tree, model, switches)
    preamble = resolve_preamble(tree, model, switches=True)
    atoms = {atom for holding in preamble.holdings for atom in holding.aggregate}
    max_pieces = {} if pieces is None else dict.fromkeys(atoms, pieces)
    candidates = []
    if tree.actions and any(partition.members is None for partition in preamble.partitions):
        program, faults = resolve_and_check(tree, model, naive=False)
        candidates = [] if faults else [program]  # with the memberships that its body has
    proposers = [make_proposer(source, read_text) for source in sources]
    if naive:
        result = synthesize_naive(preamble, model)
    else:
        with show_phases() as phase:
            result = synthesize(
                preamble,
                model,
                SynthesisOptions(switches=switches, max_pieces=max_pieces, **limits),
                candidates=candidates,
                proposers=proposers,
                progress=lambda step, best: phase(f"{step}, best {best:.3f} ms"),
            )
    for line in result.proposals:
        output.note(line)
    text = _format_program(result.program)
    if target is not None:
        output.write_text(target, text)
    completion = _describe_completion(result.completion_ms, model)
    if as_json:
        times = {**completion, "naive_ms": result.naive_ms}
        bounds = {"bound_ms": result.bound.bound_ms, "bound_by": result.bound.bound_by}
        free = {"bound_free_ms": _describe_bound(tree, model, switches=switches)["bound_ms"]}
        document = {"valid": True, **times, **bounds, **free, "splits": dict(result.splits), "program": text}
        output.say_json(document | {"proposals": list(result.proposals)})
        return
    summary = f"{result.completion_ms:.3f} ms{_describe_trust(completion)}, {_format_sizes(tree)}"
    summary += f"; the naive body: {result.naive_ms:.3f} ms\n"
    summary += f"no program takes less than {result.bound.bound_ms:.3f} ms"
    if any(partition.members is None for partition in preamble.partitions):
        summary += " with these memberships"
    summary += f": {result.bound.bound_by}"
    if result.interrupted:
        summary += "\ninterrupted: the best found so far"
    if target is None:
        output.say(text)
    if target in (None, output.STDOUT):
        output.note(summary)
    else:
        output.say(summary)


@command(
    "bound",
    "einc exprog bound swap.exprog -m dgx-h100 --ideal",
    "einc exprog bound allreduce.xml -m dgx-a100 --chunk 1MiB",
)
@click.argument("file", metavar="FILE")
@machine_option(required=True)
@_ideal
@_switches
@chunk_option
@json_option
def bound_command(file: str, machine: str, ideal: bool, switches: bool, chunk: int | None, as_json: bool) -> None:
    """Say what time no program for the same IN and OUT can go below, why, and how far from it the body of FILE is."""
    from einc.exchange.simulation.simulator import simulate

    tree = read_program_tree(file, chunk)
    model = load_program_machine(machine, ideal, tree)
    switches = _uses_switches(tree, model, switches)
    document: dict[str, Any] = {**_describe_completion(None, model), "ratio": None}
    if tree.actions:
        program, errors = resolve_and_check(tree, model, naive=False)
        if errors:
            raise ProgramError(errors[0].message, where=errors[0].where, hint="`einc exprog check` lists all faults")
        document |= _describe_completion(simulate(program, model).completion_ms, model)
    document |= _describe_bound(tree, model, switches=switches)
    least, taken = document["bound_ms"], document["completion_ms"]
    if taken is not None and least:
        document["ratio"] = taken / least
    if as_json:
        output.say_json(document)
        return
    trust = _describe_trust(document)
    if taken is None:
        lines = [f"no program takes less than {least:.4g} ms{trust}: {document['bound_by']}"]
    else:
        times = f", {document['ratio']:.3g} times that" if document["ratio"] is not None else ""
        lines = [_format_bound(document), f"this one takes {taken:.4g} ms{trust}, {_format_sizes(tree)}{times}"]
    output.say("\n".join(lines))


def _read_sound(file: str) -> ProgramTree:
    """As `read_program_tree`, but the faults of an algorithm are those of a check, all together."""
    text = read_text(file)
    form = detect_format(text)
    if form != EXPROG:
        from einc.exchange.collectives.verifying import verify_algorithm

        faults = verify_algorithm(parse_algorithm(text, file, form)).faults
        if faults:
            rows = [{"message": fault.message, "where": fault.where or file} for fault in faults]
            document = {"valid": False, "faults": rows, "program": None, "bound_ms": None, "bound_by": None}
            details = "\n".join(f"{row['where']}: {row['message']}" for row in rows)
            raise CheckFailed(f"{file} is not valid", document, details=details)
    return read_program_tree(file)


def _describe_completion(completion_ms: float | None, machine: Machine) -> dict[str, Any]:
    """The time of a program with its range, and whether anything was measured of the machine."""
    from einc.predict.ranges import find_moving_range

    span = find_moving_range(completion_ms, machine)
    return {"completion_ms": completion_ms, "completion_range_ms": span, "rates": _name_rates(machine)}


def _name_rates(machine: Machine) -> str:
    from einc.predict.ranges import name_rates

    return name_rates(machine)


def _describe_trust(document: dict[str, Any]) -> str:
    from einc.report.tables import describe_trust

    return describe_trust(document, "completion")


def _uses_switches(tree: ProgramTree, machine: Machine, asked_for: bool) -> bool:
    """Whether switches may copy and add: on request, or where the body of a file lets them. Raises UsageError where a
    machine is asked for what it has not."""
    from einc.machines.model import find_adding_switches

    if asked_for and not find_adding_switches(machine):
        raise UsageError(
            f"{machine.name} has no switch that copies and adds",
            hint="--switches is for NVSwitches of H100 and later: `einc machine show` draws what a machine has",
        )
    return asked_for or tree.uses_switches


def _describe_bound(tree: ProgramTree, machine: Machine, *, switches: bool = False) -> dict[str, Any]:
    """The lower bound of all bodies, for every membership that the text leaves open; with `switches`, or a body that
    needs them, also of those in which switches copy and add."""
    from einc.exchange.bounds import bound
    from einc.exchange.language.resolve import resolve_preamble

    switches |= tree.uses_switches
    certificate = bound(resolve_preamble(tree, machine, switches=True), machine, switches=switches)
    return {"bound_ms": certificate.bound_ms, "bound_by": certificate.bound_by}


def _format_bound(document: dict[str, Any]) -> str:
    return f"no program takes less than {document['bound_ms']:.4g} ms: {document['bound_by']}"


def _format_sizes(tree: ProgramTree) -> str:
    """`for atoms of 1 GB`, which is also what they have where IN does not say it, or `for atoms of 1 KB to 1 GB`."""
    from einc.exchange.language.printer import format_size

    sizes = [node.holding.size for node in tree.holdings]
    return "for atoms of " + " to ".join(map(format_size, sorted({min(sizes), max(sizes)})))


def _format_program(program: Program) -> str:
    from einc.exchange.language.printer import print_program

    return print_program(program)
