"""`einc explain`: what a plan does and why, from its file alone; a model is compiled first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import read_bytes, require_page
from einc.cli.options import compile_options
from einc.cli.plans import load_plan
from einc.errors import UsageError
from einc_runtime.cli import files, output
from einc_runtime.cli.base import command, json_option
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import suggest_name

if TYPE_CHECKING:
    from einc.plan_reading.timing import Timing
    from einc_runtime.plan.schema import Bundle

FORMATS = ("text", "json", "html", "dot", "mermaid")

MAX_TRACE_BYTES = 1 << 28
"""A longer trace file is refused."""


@command(
    "explain",
    "einc explain ffn.bin",
    "einc explain ffn.ein -m dgx-a100 --op hidden",
    "einc explain ffn.bin --preamble 'output y'",
    "einc explain ffn.bin --against random.bin",
    "einc explain ffn.bin --html report.html",
    "einc explain ffn.bin --html report.html --trace measured.json --compare other.bin",
    "einc explain ffn.bin --format mermaid",
    "einc explain ffn.bin --trace t.json",
    "einc explain ffn.bin --json",
    short_help="Show what a plan takes, why it was chosen, and what it does.",
)
@click.argument("source", metavar="PLAN | MODEL.ein")
@compile_options
@click.option("--op", "operator", metavar="NAME", help="Show one operator with all its blocks.")
@click.option("--preamble", metavar="NAME", help="Print the preamble of one exchange, to write a program for it.")
@click.option("--all-specs", is_flag=True, help="Show every cut that was considered.")
@click.option("--launches", is_flag=True, help="List each launch and exchange of the critical path, and its roofline.")
@click.option("--paper", is_flag=True, help="Show the paper's cost, in elements, beside the times.")
@click.option("--against", "--compare", "against", metavar="PLAN2", help="Compare with another plan.")
@click.option("--html", metavar="FILE", help="Write a page with pictures that a browser shows.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="What is printed.  [default: text]")
@click.option(
    "--trace",
    metavar="FILE",
    help="Write the predicted timeline, for Perfetto; with a page, read one that `einc run --trace` measured.",
)
@json_option
def explain_command(source: str, **arguments: Any) -> None:
    """Show how long a plan takes and why it was chosen, how each operator is cut, what moves, and the next best cut.

    A plan file is enough; a model is compiled first, with the options of `einc compile`. --html writes all of it as one
    page, and --format dot or mermaid the model as a graph.
    """
    request = _read_request(source, arguments)
    request.check()
    from einc.plan_reading.timing import read_plan_machine, time_plan
    from einc.report.document import explain
    from einc_runtime.plan.repetition import unfold, unfold_statements

    with show_phases() as phase:
        output.require_outputs(request.targets, [source, request.against, arguments["machine"], request.measured])
        require_page(request.html)
        measured = None if request.measured is None else read_bytes(request.measured, MAX_TRACE_BYTES)
        folded = load_plan(source, arguments, phase)
        if request.trace is not None:
            folded = unfold(folded)  # a trace has every task
        bundle = unfold_statements(folded)
        if request.preamble is not None:
            _say_preamble(bundle, request.preamble, request.form == "json")
            return
        if request.operator is not None:
            _require_operator(bundle, request.operator)
        second = None if request.against is None else files.read_plan(request.against, folded=True)
        phase("timing what moves")
        machine, ideal = read_plan_machine(bundle), bool(arguments["ideal"])
        timing = time_plan(folded, machine.ideal() if ideal else machine)
        document = explain(folded, ideal=ideal, all_specs=request.all_specs, only=request.operator, timing=timing)
        against_document = (
            None if second is None or request.form not in ("text", "json") else explain(second, ideal=ideal)
        )
        if request.launches:
            from einc.report.critical_launches import describe_critical_launches

            rows = describe_critical_launches(bundle, machine.ideal() if ideal else machine, timing)
            document["critical_launches"] = rows
        if request.trace is not None and request.measured is None:
            output.write_text(request.trace, _format_trace(bundle, timing))
        page = None
        if request.makes_page:
            from einc.report.html.page import write_plan_page

            phase("writing the page")
            trace = None if measured is None else (measured, str(request.measured))
            page = write_plan_page(folded, ideal=ideal, document=document, timing=timing, against=second, trace=trace)
        if request.html is not None and page is not None:
            output.write_text(request.html, page)
    _print(request, bundle, document, against_document, page)


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What is asked of `explain`, beside the options of a compilation. `form` is one of FORMATS, None where the page
    in the file `html` is all that is wanted."""

    source: str
    operator: str | None
    preamble: str | None
    all_specs: bool
    against: str | None
    html: str | None
    form: str | None
    trace: str | None
    paper: bool
    launches: bool

    @property
    def makes_page(self) -> bool:
        return self.html is not None or self.form == "html"

    @property
    def measured(self) -> str | None:
        """The file of a measured trace, which only a page shows."""
        return self.trace if self.makes_page else None

    @property
    def targets(self) -> list[str]:
        return [path for path in (self.html, None if self.makes_page else self.trace) if path is not None]

    def check(self) -> None:
        """Raises UsageError for options that contradict each other."""
        drawn = self.form in ("html", "dot", "mermaid") or self.html is not None
        conflicting = {
            "--op": self.operator is not None,
            "--all-specs": self.all_specs,
            "--against": self.against is not None,
            "--trace": self.trace is not None,
            "--launches": self.launches,
        }
        if self.operator is not None and self.against is not None:
            raise click.UsageError("--op and --against cannot be combined")
        if self.preamble is not None and (drawn or any(conflicting.values())):
            raise click.UsageError(f"--preamble cannot be combined with {', '.join(conflicting)}, --html or --format")
        if self.launches and (drawn or self.operator is not None or self.all_specs or self.against is not None):
            raise click.UsageError(
                "--launches shows the whole plan: leave out --op, --all-specs, --against and --format"
            )
        if drawn and (self.operator is not None or self.all_specs):
            raise click.UsageError("a page and a graph show all operators: leave out --op and --all-specs")
        if self.trace == output.STDOUT and not self.makes_page and self.form not in (None, "text"):
            raise click.UsageError("--trace - and --json or --format both need standard output")
        if self.html == output.STDOUT and self.form is not None:
            raise click.UsageError("--html - and --json or --format both need standard output")


def _read_request(source: str, arguments: dict[str, Any]) -> ExplainRequest:
    """Takes what is not about the compilation out of the arguments. `--json` is short for `--format json`."""
    fields = {
        name: arguments.pop(name)
        for name in ("operator", "preamble", "all_specs", "against", "html", "form", "trace", "paper", "launches")
    }
    if arguments.pop("as_json"):
        if fields["form"] not in (None, "json"):
            raise click.UsageError("--json and --format contradict each other")
        fields["form"] = "json"
    if fields["form"] is None and fields["html"] is None:
        fields["form"] = "text"
    return ExplainRequest(source, **fields)


def _print(
    request: ExplainRequest, bundle: Bundle, document: dict[str, Any], against: dict[str, Any] | None, page: str | None
) -> None:
    if request.trace == output.STDOUT and request.measured is None:
        return
    if request.html not in (None, output.STDOUT) and page is not None:
        output.note(f"{request.html}: {len(page.encode()):,} bytes, to be opened in a browser")
    match request.form:
        case "json":
            output.say_json(document if against is None else {**document, "against": against})
        case "html":
            output.say(page or "")
        case "dot" | "mermaid":
            from einc.report import diagrams
            from einc.report.folding import fold_graph

            graph = fold_graph(bundle, document["ops"])
            output.say((diagrams.format_dot if request.form == "dot" else diagrams.format_mermaid)(document, graph))
        case "text":
            output.say(_format_text(request, document, against))


def _say_preamble(bundle: Bundle, name: str, as_json: bool) -> None:
    from einc.report.exchanges import describe_exchange, format_preamble

    described = describe_exchange(bundle, name)
    if as_json:
        output.say_json(described)
    else:
        output.say(format_preamble(bundle, described))


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


def _format_text(request: ExplainRequest, document: dict[str, Any], against: dict[str, Any] | None) -> str:
    from einc.report import comparison, terminal

    def strong(text: str) -> str:
        return click.style(text, bold=True) if output.use_colours() else text

    if against is not None:
        return comparison.format_comparison(document, against, (request.source, request.against or ""), strong)
    if request.launches:
        from einc.report.critical_launches import format_critical_launches

        return format_critical_launches(document["critical_launches"])
    if request.operator is not None:
        return terminal.format_operator(document, strong)
    if request.all_specs:
        parts = [terminal.format_operator({**document, "ops": [op]}, strong) for op in document["ops"]]
        return "\n".join(parts)
    return terminal.format_overview(document, strong, paper=request.paper)
