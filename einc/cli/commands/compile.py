"""`einc compile`: write the plan of a model, show a stage of the compilation, or compare machines.

`--precompile` also compiles the plan's GPU kernels, beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import read_model_text, require_page, require_plan
from einc.cli.options import (
    compile_options,
    complete_machines,
    keep_best_on_interrupt,
    note_programs,
    read_options,
    read_proposers,
)
from einc.cli.stages import STAGES, dump_stage, summarize_plan
from einc.errors import CapacityError, MachineError, UsageError
from einc.options import CompileOptions
from einc_runtime.cli import output
from einc_runtime.cli.base import TextType, command, json_option
from einc_runtime.cli.files import STDIN
from einc_runtime.cli.progress import show_phases
from einc_runtime.errors import WriteFault
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc.compiler import Compiled
    from einc_runtime.plan.schema import Bundle


def _read_architectures(text: str) -> tuple[str, ...]:
    from einc_runtime.kernels.cuda.triton_compile import ARCHITECTURES

    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in ARCHITECTURES:
            raise ValueError(f"'{name}' is not an architecture; there are {', '.join(ARCHITECTURES)}")
    return names


def require_compiler() -> str:
    """The compiler's name and version. Raises MissingFault where there is none."""
    from einc_runtime.execution.cuda import precompile as kernels

    return kernels.require_compiler()


def precompile(bundle: Bundle, plan: str, architectures: tuple[str, ...]) -> dict[str, Any]:
    """Compiles the kernels of the plan that is written to `plan`, and returns where they are and how many."""
    from einc_runtime.execution.cuda.precompile import precompile as compile_kernels
    from einc_runtime.kernels.cuda.kernel_cache import directory_beside

    folder = directory_beside(plan)
    try:
        count = compile_kernels(bundle, architectures, folder)
    except OSError as error:
        raise WriteFault(f"cannot write kernels to {folder}: {error.strerror or error}") from error
    output.note(f"{folder}: {count} kernels for {', '.join(architectures)}")
    return {
        "directory": str(folder),
        "architectures": list(architectures),
        "count": count,
        "compiler": require_compiler(),
    }


@dataclass(frozen=True, slots=True)
class CompileArguments:
    """The arguments of `compile` beside the options of the compilation, as click gives them."""

    model: str
    target: str | None
    emit: str | None
    machines: tuple[str, ...]
    architectures: tuple[str, ...] | None
    html: str | None
    as_json: bool

    @classmethod
    def read(cls, model: str, **fields: Any) -> CompileArguments:
        """Where nothing else is asked for, the plan is written, named after the model, into the current folder.

        Raises UsageError for a model without a name.
        """
        shown = fields["emit"] is not None or fields["html"] is not None or fields["machines"]
        if fields["target"] is None and not shown:
            if model == STDIN:
                raise click.UsageError("a model from standard input has no name for its plan: give -o PLAN")
            fields["target"] = os.path.splitext(os.path.basename(model))[0] + ".bin"
        return cls(model, **fields)

    def check(self) -> None:
        """Raises UsageError if they contradict each other, MissingFault if no compiler is there."""
        if self.html == output.STDOUT and (self.target == output.STDOUT or self.emit or self.as_json or self.machines):
            raise click.UsageError("--html - writes the page to standard output, which other options need, too")
        if self.target == output.STDOUT and (self.emit is not None or self.as_json or self.machines):
            raise click.UsageError(
                "-o - writes the plan to standard output, which --emit, --compare and --json need for themselves"
            )
        if self.architectures is not None:
            if self.target in (None, output.STDOUT):
                raise click.UsageError("--precompile writes kernels beside the plan file that -o names")
            require_compiler()


@dataclass(frozen=True, slots=True)
class Results:
    """What a command prints: the text of a stage, a summary of the plan, a row for each machine."""

    text: str | None = None
    summary: dict[str, Any] | None = None
    rows: list[dict[str, Any]] | None = None


@command(
    "compile",
    "einc compile ffn.ein -m dgx-a100 -o ffn.bin",
    "einc compile ffn.ein --devices 0,1,4,5 -m dgx-v100 -D tokens=1000 -o ffn.bin",
    "einc compile ffn.ein -m dgx-h100 --emit logical",
    "einc compile ffn.ein -m dgx-a100 -o ffn.bin --html report.html",
    "einc compile ffn.ein -m dgx-a100 -o ffn.bin --precompile sm_80",
    "einc compile ffn.ein -m dgx-a100 --compare dgx-h100 --compare dgx-h100:4",
    short_help="Plan a model for a machine and write the plan.",
)
@click.argument("model", metavar="MODEL.ein")
@click.option(
    "-o",
    "--output",
    "target",
    metavar="PLAN",
    help="The plan file to write; - is standard output.  [default: MODEL.bin in this folder]",
)
@compile_options
@click.option("--emit", type=click.Choice(STAGES), help="Print a stage of the compilation.")
@click.option(
    "--compare",
    "machines",
    multiple=True,
    metavar="MACHINE[:N | :0,1,2]",
    shell_complete=complete_machines,
    help="Also show what the model would cost on this machine, or on some of its sites.",
)
@click.option(
    "--precompile",
    "architectures",
    type=TextType("ARCHITECTURES", _read_architectures),
    metavar="sm_80,sm_90",
    help="Compile the plan's GPU kernels for these architectures into PLAN.kernels; this needs Triton but no GPU.",
)
@click.option("--html", metavar="FILE", help="Write a page about the plan, as `einc explain --html` does.")
@json_option
def compile_command(model: str, **chosen: Any) -> None:
    """Plan a model for a machine and write the plan.

    The plan is all that `einc run` needs: it carries every operator's cut, its placement, the data movement and the
    memory layout. Compiling needs no GPU, whatever the machine.
    """
    fields = {name: chosen.pop(name) for name in ("target", "emit", "machines", "architectures", "html", "as_json")}
    arguments = CompileArguments.read(model, **fields)
    arguments.check()
    target, emit, machines = arguments.target, arguments.emit, arguments.machines
    options, proposers = read_options(chosen), read_proposers(chosen)
    machine_options = derive_options(options, machines)
    text = read_model_text(model)
    targets = [path for path in (target, arguments.html) if path is not None]
    if targets:
        read = [model, options.machine, *(compared.machine for compared in machine_options), *chosen["proposers"]]
        output.require_outputs(targets, [*read, *(file for _, file in chosen["exchanges"])])
        require_page(arguments.html)
        require_plan(target)

    from einc.compiler import compile_model

    with show_phases() as phase:
        compiled = compile_model(text, model, options, phase, proposers)
        with keep_best_on_interrupt(compiled.budget):
            dumped = None if emit is None else dump_stage(compiled, emit)
            summary = None if target is None else _write(compiled, target, arguments.architectures, phase)
            if arguments.html is not None:
                _write_page(compiled, arguments.html, phase)
            rows = compare_costs(compiled, machine_options, phase) if machines else None
    if options.machine is None and emit not in ("source-graph", "graph") and compiled.target.note:
        output.note(f"einc: {compiled.target.note}")
        if compiled.target.assumed is not None:
            output.note(f"einc: warning: {compiled.target.assumed}")
    note_programs(compiled)
    if summary is not None:
        summary["proposals"] = compiled.proposals
    _print(arguments, Results(dumped, summary, rows))


def _write(
    compiled: Compiled, target: str, architectures: tuple[str, ...] | None, phase: Callable[[str], None]
) -> dict[str, Any]:
    """Writes the kernels for these architectures, and then the plan beside them. Returns the summary."""
    from einc_runtime.plan.codec import encode

    data = encode(compiled.folded_bundle)
    summary = {**summarize_plan(compiled.folded_bundle), "plan": target, "bytes": len(data)}
    if architectures is not None:
        phase("compiling kernels")
        summary["kernels"] = precompile(compiled.bundle, target, architectures)
    output.write_bytes(target, data)
    return summary


def _write_page(compiled: Compiled, html: str, phase: Callable[[str], None]) -> None:
    from einc.report.html.page import write_plan_page

    bundle = compiled.folded_bundle
    phase("writing the page")
    output.write_text(html, write_plan_page(bundle))


def _print(arguments: CompileArguments, results: Results) -> None:
    if arguments.as_json:
        document = dict(results.summary or {})
        if arguments.emit is not None:
            document["emit"] = {"stage": arguments.emit, "text": results.text}
        if results.rows is not None:
            document["comparison"] = results.rows
        output.say_json(document)
        return
    if results.text is not None:
        output.say(results.text)
    if results.rows is not None:
        from einc.report.machine_costs import format_table

        output.say("\n".join(format_table(results.rows)))
    if results.summary is not None:
        from einc.report.division import summarize_division
        from einc.report.selection import describe_choice
        from einc.report.tables import format_baselines

        summary = results.summary
        output.note(
            f"{summary['plan']}: {summary['model']}, {format_count(summary['operators'], 'operator')} on "
            f"{format_count(summary['devices'], 'site')} of {summary['machine']}, {describe_choice(summary)}"
        )
        for line in (*summarize_division(summary["division"]), *format_baselines(summary["baselines"])):
            output.note(line)
        if results.rows is None and summary["note"] is not None:
            output.note(f"einc: {summary['note']}")


def derive_options(options: CompileOptions, machines: Sequence[str]) -> tuple[CompileOptions, ...]:
    """The same options for other machines.

    A person's exchange programs are for one machine, so they are left out.

    The sites are those that `MACHINE:4` or `MACHINE:0,1,4` names; else as many as were asked for, at most all that the
    machine has; else all of them. A limit of memory counts only for machines that have more. Raises UsageError for a
    machine that is not there, MachineError for a broken file or too many sites.
    """
    from einc.machines.load import load_machine
    from einc.target import select_target
    from einc_runtime.plan.schema import HOST

    named = len(options.devices) if isinstance(options.devices, tuple) else options.devices
    machine_options = []
    for text in machines:
        of_machine = CompileOptions(machine=text)
        name, devices = str(of_machine.machine), of_machine.devices
        if devices is None:
            sites = len(load_machine(name).sites)
            devices = named if named is None or name == HOST else min(named, sites)
        most = max(site.memory_bytes for site in load_machine(name).sites)
        memory = options.memory if options.memory is not None and options.memory <= most else None
        machine_options.append(replace(options, machine=name, devices=devices, memory=memory, exchanges=()))
        select_target(machine_options[-1])
    return tuple(machine_options)


def compare_costs(
    compiled: Compiled, machine_options: Sequence[CompileOptions], phase: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row for the compilation and one for each of the others; see `einc.report.machine_costs`."""
    from einc.compiler import Compiled
    from einc.report.machine_costs import add_ratios, describe_costs, describe_failure

    rows = [describe_costs(compiled.folded_bundle, compiled.target.named)]
    for options in machine_options:
        name = str(options.machine)
        on_machine = Compiled(compiled.source, options, lambda stage, name=name: phase(f"{name}: {stage}"))  # type: ignore[misc]
        target = on_machine.target
        try:
            with keep_best_on_interrupt(on_machine.budget):
                rows.append(describe_costs(on_machine.folded_bundle, target.named))
        except (CapacityError, MachineError, UsageError) as error:  # it does not fit there, or a pin does not
            rows.append(describe_failure(target.machine.name, target.named, len(target.devices), error.message))
    return add_ratios(rows)
