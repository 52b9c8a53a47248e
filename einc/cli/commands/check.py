"""`einc check`: parse and type-check a model, and hold a model or a plan to contracts (`--assert`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from einc.cli.files import is_plan, read_model_text, read_text
from einc.cli.options import compile_options
from einc.cli.plans import list_given, load_plan
from einc.options import CompileOptions
from einc_runtime.cli import output
from einc_runtime.cli.base import EincCommand, examples, json_option
from einc_runtime.cli.failures import CheckFailed
from einc_runtime.cli.progress import show_phases
from einc_runtime.text import format_count

if TYPE_CHECKING:
    from einc.graph.graph import Graph
    from einc.report.contract_text import Contract
    from einc.report.contracts import Finding

_FRONTEND = (
    "definitions",
    "preset",
    "dtype",
    "step",
    "train",
    "gradients",
    "optimizer",
    "clip",
    "precision",
    "accumulate",
    "decay",
    "undecayed",
    "recompute",
)
"""The options of `einc compile` that mean something without a plan."""


class CheckCommand(EincCommand):
    """The command with the quantities of contracts in its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from einc.report.contract_text import QUANTITIES

        with formatter.section("Quantities of contracts"):
            formatter.write_dl([(name, meaning) for name, (_, meaning) in QUANTITIES.items()])
        super().format_epilog(ctx, formatter)


@click.command(
    "check",
    cls=CheckCommand,
    short_help="Type-check a model; hold a model or a plan to contracts.",
    epilog=examples(
        "einc check ffn.ein",
        "einc check llama.ein -D n_layers=2 --dtype f32",
        "einc check ffn.bin --assert 'comm_bytes <= 300MiB' --assert 'bound_ratio <= 1.1'",
        "einc check ffn.ein -m dgx-a100 --assert 'predicted_ms <= 0.3' --assert 'cut(act) == i/4,k/2'",
    ),
)
@click.argument("source", metavar="MODEL.ein | PLAN")
@click.option(
    "--assert",
    "asserts",
    multiple=True,
    metavar="CONTRACT",
    help="What the plan shall keep to: QUANTITY <= NUMBER UNIT (also <, >=, >, ==, !=), or cut(PATTERN) == CUT.",
)
@click.option("--assert-file", "files", multiple=True, metavar="FILE", help="A file with one contract a line.")
@compile_options
@json_option
def check_command(
    source: str, asserts: tuple[str, ...], files: tuple[str, ...], as_json: bool, **arguments: Any
) -> None:
    """Parse and type-check a model; all its errors are reported together.

    With --assert, hold a plan to contracts: the plan in a file, or that of a model, which is compiled for this with the
    options of `einc compile`. Nothing is run, and no GPU is needed. All contracts that do not hold are reported, with
    the figures found, and the exit code is then 1. Numbers take units: ns, us, ms, s; B, KB, KiB, MB, MiB, GB, GiB, TB
    and TiB.
    """
    contracts = _read_contracts(asserts, files)
    compiling = list_given(arguments, besides=_FRONTEND)
    if compiling and not contracts:
        raise click.UsageError(f"{compiling[0]} is for compiling, which `einc check` does for --assert only")
    if contracts and is_plan(source):
        document: dict[str, Any] = {}
    else:
        from einc.compiler import read_model
        from einc.graph.graph import verify_graph

        options = CompileOptions(**{name: arguments[name] for name in _FRONTEND if arguments[name] is not None})
        graph = read_model(read_model_text(source), source, options)
        verify_graph(graph)
        document = _describe(graph)
        if not as_json:
            output.say(_summarize(source, graph))
    if contracts:
        plan, findings = _check_contracts(source, contracts, arguments)
        document |= {**plan, "asserts": [finding.document for finding in findings]}
        _say_findings(source, findings, document, as_json)
    if as_json:
        output.say_json(document)


def _read_contracts(asserts: tuple[str, ...], files: tuple[str, ...]) -> list[Contract]:
    from einc.report.contract_text import MAX_CONTRACTS, parse_contract, parse_contract_file

    contracts = [contract for file in files for contract in parse_contract_file(read_text(file), file)]
    contracts += [parse_contract(text) for text in asserts]
    if len(contracts) > MAX_CONTRACTS:
        raise click.UsageError(f"{len(contracts):,} contracts; at most {MAX_CONTRACTS:,} are possible")
    if files and not contracts:
        raise click.UsageError(f"{files[0]} has no contract")
    return contracts


def _check_contracts(
    source: str, contracts: list[Contract], arguments: dict[str, Any]
) -> tuple[dict[str, Any], list[Finding]]:
    """Of which plan the figures are, and whether it keeps to each contract."""
    from einc.report.contracts import check_contracts
    from einc.report.document import explain
    from einc_runtime.plan.repetition import unfold_statements

    with show_phases() as phase:
        folded = load_plan(source, arguments, phase)
        phase("timing what moves")
        document = explain(folded, ideal=bool(arguments["ideal"]), with_alternatives=False)
        findings = check_contracts(contracts, unfold_statements(folded), document)
    told = ("model", "machine", "devices", "selector", "schedule", "predicted_ms", "predicted_range_ms", "rates")
    return {name: document[name] for name in told}, findings


def _say_findings(source: str, findings: list[Finding], document: dict[str, Any], as_json: bool) -> None:
    """Raises CheckFailed if a contract does not hold."""
    if not as_json:
        for finding in findings:
            if finding.holds:
                output.say(f"holds: {finding.contract.text} ({finding.measured})")
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        lines = []
        for finding in broken:
            where = f"{finding.contract.where}: " if finding.contract.where else ""
            lines.append(f"{where}does not hold: {finding.contract.text} ({finding.measured})")
        message = f"{source}: {len(broken)} of {format_count(len(findings), 'contract')} "
        message += "does not hold" if len(broken) == 1 else "do not hold"
        raise CheckFailed(message, document, details="\n".join(lines))


def _describe(graph: Graph) -> dict[str, Any]:
    from einc.graph.graph import TensorKind

    tensors = [
        {"name": t.name, "kind": t.kind.value, "dims": list(t.desc.dims), "shape": list(t.desc.shape),
         "dtype": t.desc.dtype.value, "stored": (t.stored or t.name) if t.kind is TensorKind.WEIGHT else None}
        for t in graph.tensors
    ]  # fmt: skip
    return {"model": graph.name, "operators": len(graph.nodes), "tensors": tensors, "outputs": list(graph.outputs)}


def _summarize(source: str, graph: Graph) -> str:
    kinds = [tensor.kind.value for tensor in graph.tensors]
    counts = ", ".join(
        format_count(number, noun)
        for noun, number in (
            ("input", kinds.count("input")), ("weight", kinds.count("weight")), ("operator", len(graph.nodes))
        )
    )  # fmt: skip
    names = [*graph.outputs[:8], *([f"{len(graph.outputs) - 8} more"] if len(graph.outputs) > 8 else [])]
    return f"{source}: model {graph.name} is well-typed: {counts}, outputs {', '.join(names)}"
