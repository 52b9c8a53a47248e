"""`einc compile`: a model becomes a plan file, or any stage on the way there is shown as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc.cli.compare_machines import compare_costs, options_for
from einc.cli.files import read_text
from einc.cli.options import compile_options, complete_machines, keeping_the_best, read_options
from einc.cli.precompile import Architectures, precompile, require_compiler
from einc_runtime.cli import output
from einc_runtime.cli.base import Command, examples, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import counted

if TYPE_CHECKING:
    from einc.compiler import Compiled
    from einc_runtime.plan.schema import Bundle, Exchange

STAGES = ("ast", "source-graph", "graph", "logical", "exprog", "device", "bundle")


@click.command(
    "compile",
    cls=Command,
    short_help="Plan a model for a machine and write the plan.",
    epilog=examples(
        "einc compile ffn.ein -m dgx-a100 -o ffn.bin",
        "einc compile ffn.ein --devices 0,1,4,5 -m dgx-v100 -D tokens=1000 -o ffn.bin",
        "einc compile ffn.ein -m dgx-h100 --emit logical",
        "einc compile ffn.ein -m dgx-a100 -o ffn.bin --precompile sm_80",
        "einc compile ffn.ein -m dgx-a100 --compare dgx-h100 --compare dgx-h100:4",
    ),
)
@click.argument("model", metavar="MODEL.ein")
@click.option("-o", "--output", "target", metavar="PLAN", help="The plan file to write; - is standard output.")
@compile_options
@click.option("--emit", type=click.Choice(STAGES), help="Print a stage of the compilation.")
@click.option(
    "--compare",
    "machines",
    multiple=True,
    metavar="MACHINE[:N | :0,1,2]",
    shell_complete=complete_machines,
    help="Show what the model would cost on this machine too, or on so many of its sites.",
)
@click.option(
    "--precompile",
    "architectures",
    type=Architectures(),
    metavar="sm_80,sm_90",
    help="Compile the plan's GPU kernels for these, into PLAN.kernels; it needs Triton and no GPU.",
)
@json_option
def compile_command(
    model: str,
    target: str | None,
    emit: str | None,
    machines: tuple[str, ...],
    architectures: tuple[str, ...] | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Plan a model for a machine and write the plan.

    The plan is all that `einc run` needs: it carries every operator's cut, its placement, the data movement and the
    memory layout. Compiling needs no GPU, whatever the machine.
    """
    if target is None and emit is None and not machines:
        raise click.UsageError("nothing to do: give -o PLAN, --emit STAGE, or --compare MACHINE")
    if target == output.STDOUT and (emit is not None or as_json or machines):
        raise click.UsageError(
            "-o - writes the plan to standard output, which --emit, --compare and --json need for themselves"
        )
    if architectures is not None:
        if target in (None, output.STDOUT):
            raise click.UsageError("--precompile writes kernels beside the plan file that -o names")
        require_compiler()
    options = read_options(chosen)
    others = options_for(options, machines)
    text = read_text(model)
    if target is not None:
        output.require_outputs([target], [model, options.machine, *(other.machine for other in others)])
    if emit == "ast" and target is None and not machines:
        _print(emit, _syntax(text, model), None, as_json)
        return

    from einc.compiler import compile_model

    with show_phases() as phase:
        compiled = compile_model(text, model, options, phase)
        with keeping_the_best(compiled.budget):
            shown = None if emit is None else _syntax(text, model) if emit == "ast" else dump(compiled, emit)
            summary = None
            if target is not None:
                from einc_runtime.plan.codec import encode

                data = encode(compiled.bundle)
                output.write_bytes(target, data)
                summary = {**summarize(compiled), "plan": target, "bytes": len(data)}
                if architectures is not None:
                    phase("compiling kernels")
                    summary["kernels"] = precompile(compiled.bundle, target, architectures)
            rows = compare_costs(compiled, others, phase) if machines else None
    if compiled.options.machine is None and emit not in ("ast", "source-graph", "graph") and compiled.target.note:
        output.note(f"einc: {compiled.target.note}")
    _print(emit, shown, summary, as_json, rows)


def summarize(compiled: Compiled) -> dict[str, Any]:
    """What a compilation came to, as the fields that `einc explain --json` has as well."""
    from einc.report.timing import plan_machine, unlisted_peaks

    bundle = compiled.bundle
    return {
        "model": bundle.model,
        "machine": bundle.machine,
        "devices": len(bundle.devices),
        "selector": bundle.selector,
        "schedule": bundle.schedule,
        "total_cost": bundle.total_cost,
        "exact": bundle.exact,
        "cut_cost": bundle.cut_cost,
        "operators": len(bundle.operations),
        "memory_bytes": list(bundle.memory),
        "predicted_ms": bundle.predicted_ms,
        "note": unlisted_peaks(bundle, plan_machine(bundle)),
        "exchanges": [
            {
                "name": name,
                "completion_ms": exchange.completion_ms,
                "naive_ms": exchange.naive_ms,
                "bound_ms": exchange.bound_ms,
                "bound_free_ms": exchange.bound_free_ms,
                "bound_by": exchange.bound_by,
                "splits": dict(exchange.splits),
            }
            for name, exchange in _exchanges(bundle)
        ],
    }


def dump(compiled: Compiled, stage: str) -> str:
    """The canonical text of a stage after the syntax tree."""
    if stage in ("source-graph", "graph"):
        from einc.graph.graph import dump_graph

        return dump_graph(compiled.source if stage == "source-graph" else compiled.graph)
    if stage == "logical":
        from einc.logical.plan import dump_plan

        return dump_plan(compiled.plan)
    if stage == "device":
        from einc.physical.dump import dump as dump_program

        return dump_program(compiled.program)
    if stage == "exprog":
        return _programs(compiled.bundle)
    import msgspec

    return msgspec.json.format(msgspec.json.encode(compiled.bundle), indent=1).decode()


def _exchanges(bundle: Bundle) -> list[tuple[str, Exchange]]:
    """The exchanges of a plan, each with the operator or output that it serves."""
    named = [(operation.name, operation.exchange) for operation in bundle.operations]
    named += [(f"output {bundle.tensors[output.tensor].name}", output.exchange) for output in bundle.outputs]
    return [(name, exchange) for name, exchange in named if exchange is not None]


def _programs(bundle: Bundle) -> str:
    parts = [f"# {name}\n{exchange.program.strip()}\n" for name, exchange in _exchanges(bundle)]
    return "\n".join(parts) if parts else "# nothing moves\n"


def _syntax(text: str, file: str) -> str:
    from einc.frontend.parser import parse
    from einc.frontend.printer import print_model

    return print_model(parse(text, file))


def _print(
    emit: str | None,
    shown: str | None,
    summary: dict[str, Any] | None,
    as_json: bool,
    rows: list[dict[str, Any]] | None = None,
) -> None:
    if as_json:
        document = dict(summary or {})
        if emit is not None:
            document["emit"] = {"stage": emit, "text": shown}
        if rows is not None:
            document["comparison"] = rows
        output.say_json(document)
        return
    if shown is not None:
        output.say(shown)
    if rows is not None:
        from einc.report.machine_costs import format_table

        output.say("\n".join(format_table(rows)))
    if summary is not None:
        exact = "" if summary["exact"] else ", not proved least"
        output.note(
            f"{summary['plan']}: {summary['model']}, {counted(summary['operators'], 'operator')} on "
            f"{counted(summary['devices'], 'site')} of {summary['machine']}, cost {summary['total_cost']:,}{exact}, "
            f"predicted {summary['predicted_ms']:.3f} ms"
        )
        if rows is None and summary["note"] is not None:
            output.note(f"einc: {summary['note']}")
