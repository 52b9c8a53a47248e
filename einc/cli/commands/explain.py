"""`einc explain`: what a plan does and why, from its file alone; a model is compiled first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc.cli.options import compile_options
from einc.cli.plans import load_plan
from einc.errors import UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import suggest_name

if TYPE_CHECKING:
    from einc.report.timing import Timing
    from einc_runtime.plan.schema import Bundle


@click.command(
    "explain",
    cls=EincCommand,
    short_help="Show what a plan takes, why it was chosen, and what it does.",
    epilog=examples(
        "einc explain ffn.bin",
        "einc explain ffn.ein -m dgx-a100 --op hidden",
        "einc explain ffn.bin --preamble 'output y'",
        "einc explain ffn.bin --against random.bin",
        "einc explain ffn.bin --trace t.json",
        "einc explain ffn.bin --json",
    ),
)
@click.argument("source", metavar="PLAN | MODEL.ein")
@compile_options
@click.option("--op", "operator", metavar="NAME", help="Show one operator with all its blocks.")
@click.option("--preamble", metavar="NAME", help="Print the preamble of one exchange, to write a program for it.")
@click.option("--all-specs", is_flag=True, help="Show every cut that was considered.")
@click.option("--against", metavar="PLAN2", help="Compare with another plan.")
@click.option("--trace", metavar="FILE", help="Write the predicted timeline, for Perfetto.")
@json_option
def explain_command(
    source: str,
    operator: str | None,
    preamble: str | None,
    all_specs: bool,
    against: str | None,
    trace: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Show how long a plan takes and why it was chosen, how each operator is cut, what moves, and the next best cut.

    A plan file is enough; a model is compiled first, with the options of `einc compile`.
    """
    if operator is not None and against is not None:
        raise click.UsageError("--op and --against cannot be combined")
    if preamble is not None and (operator is not None or all_specs or against is not None or trace is not None):
        raise click.UsageError("--preamble cannot be combined with --op, --all-specs, --against or --trace")
    if trace == output.STDOUT and as_json:
        raise click.UsageError("--trace - and --json both need standard output")
    from einc.report.document import explain

    with show_phases() as phase:
        if trace is not None:
            output.require_outputs([trace], [source, against, arguments["machine"]])
        bundle = load_plan(source, arguments, phase)
        if preamble is not None:
            _say_preamble(bundle, preamble, as_json)
            return
        if operator is not None:
            _require_operator(bundle, operator)
        second = None if against is None else files.read_plan(against)
        phase("timing what moves")
        ideal = bool(arguments["ideal"])
        timing = None if trace is None else _time_tasks(bundle, ideal)
        document = explain(bundle, ideal=ideal, all_specs=all_specs, only=operator, timing=timing)
        other = None if second is None else explain(second, ideal=ideal)
        if trace is not None and timing is not None:
            output.write_text(trace, _format_trace(bundle, timing))
    if trace == output.STDOUT:
        return
    if as_json:
        output.say_json(document if other is None else {**document, "against": other})
    else:
        output.say(_format_text(document, other, (source, against or ""), operator, all_specs))


def _say_preamble(bundle: Bundle, name: str, as_json: bool) -> None:
    from einc.report.exchanges import describe_exchange, format_preamble

    described = describe_exchange(bundle, name)
    if as_json:
        output.say_json(described)
    else:
        output.say(format_preamble(bundle, described))


def _time_tasks(bundle: Bundle, ideal: bool) -> Timing:
    from einc.report.timing import read_plan_machine, time_plan

    machine = read_plan_machine(bundle)
    return time_plan(bundle, machine.ideal() if ideal else machine)


def _format_trace(bundle: Bundle, timing: Timing) -> str:
    """The predicted timeline as a trace file."""
    from einc_runtime.errors import PlanFault
    from einc_runtime.execution.trace import TaskRun, format_trace, make_task_events

    times = timing.times
    if times is None:
        raise PlanFault("the plan has too many transfers at once to be timed")
    spans = zip(times.starts, times.ends, strict=True)
    runs = (TaskRun(task, start, end) for task, (start, end) in enumerate(spans))
    return format_trace(make_task_events(bundle, runs), "predicted", bundle.model)


def _require_operator(bundle: Bundle, name: str) -> None:
    names = [operation.name for operation in bundle.operations]
    if name not in names:
        raise UsageError(f"the plan has no operator '{name}'", hint=suggest_name(name, names))


def _format_text(
    document: dict[str, Any],
    other: dict[str, Any] | None,
    names: tuple[str, str],
    operator: str | None,
    all_specs: bool,
) -> str:
    from einc.report import terminal

    def strong(text: str) -> str:
        return click.style(text, bold=True) if output.use_colours() else text

    if other is not None:
        return terminal.format_comparison(document, other, names, strong)
    if operator is not None:
        return terminal.format_operator(document, strong)
    if all_specs:
        parts = [terminal.format_operator({**document, "ops": [one]}, strong) for one in document["ops"]]
        return "\n".join(parts)
    return terminal.format_overview(document, strong)
