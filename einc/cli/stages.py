"""The stages of a compilation as text (`--emit`), and the summary of a plan as JSON fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from einc.errors import UsageError

if TYPE_CHECKING:
    from einc.compiler import Compiled
    from einc_runtime.plan.schema import Bundle, Exchange

STAGES = ("source-graph", "graph", "search", "logical", "exprog", "device", "bundle")


def dump_stage(compiled: Compiled, stage: str) -> str:
    """The canonical text of a stage."""
    match stage:
        case "source-graph" | "graph":
            from einc.graph.graph import dump_graph

            return dump_graph(compiled.source if stage == "source-graph" else compiled.graph)
        case "search":
            from einc.options import FASTEST

            if compiled.options.selector != FASTEST:
                raise UsageError(f"--emit search: the selector {compiled.options.selector} searches nothing")
            return "\n".join(compiled.selected.walk) or "# plans of few layers, or of stages, were searched\n"
        case "logical":
            from einc.logical.plan import dump_plan

            return dump_plan(compiled.plan)
        case "device":
            from einc.physical.program import dump as dump_program

            return dump_program(compiled.program)
        case "exprog":
            programs = [
                f"# {name}\n{exchange.program.strip()}\n" for name, exchange in _list_exchanges(compiled.bundle)
            ]
            return "\n".join(programs) if programs else "# nothing moves\n"
        case "bundle":
            import msgspec

            from einc.plan_report import read_report

            fields = msgspec.structs.asdict(compiled.bundle) | {"report": read_report(compiled.bundle)}
            return msgspec.json.format(msgspec.json.encode(fields), indent=1).decode()
    raise ValueError(f"{stage!r} is no stage")


def summarize_plan(bundle: Bundle) -> dict[str, Any]:
    """What a compilation produced, in fields that `einc explain --json` has as well."""
    from einc.plan_reading.timing import read_plan_machine, time_plan
    from einc.plan_report import read_report
    from einc.report.division import describe_division
    from einc.report.document import describe_baselines, describe_contenders, describe_heading, describe_memory_points
    from einc.report.times import describe_prediction, describe_unlisted_peaks
    from einc_runtime.plan.repetition import unfold_statements

    machine, report = read_plan_machine(bundle), read_report(bundle)
    return {
        **describe_heading(bundle, report),
        "operators": len(unfold_statements(bundle).operations),
        "memory_bytes": list(bundle.memory),
        "memory_limit": report.memory_limit,
        "predicted_ms": bundle.predicted_ms,
        **describe_prediction(bundle),
        "baselines": describe_baselines(report),
        "contenders": describe_contenders(report, machine),
        "memory_points": describe_memory_points(report, machine),
        "division": describe_division(report, time_plan(bundle, machine)) if report.stages or report.shapes else None,
        "note": describe_unlisted_peaks(bundle, machine),
        "exchanges": [
            {
                "name": name,
                "completion_ms": exchange.completion_ms,
                "naive_ms": exchange.naive_ms,
                "bound_ms": exchange.bound_ms,
                "bound_free_ms": exchange.bound_free_ms,
                "bound_by": exchange.bound_by,
                "splits": dict(exchange.splits),
                "author": exchange.author,
            }
            for name, exchange in _list_exchanges(bundle)
        ],
    }


def _list_exchanges(bundle: Bundle) -> list[tuple[str, Exchange]]:
    """The exchanges of a plan, each with the operator or output that it serves."""
    named = [(operation.name, operation.exchange) for operation in bundle.operations]
    named += [(f"output {bundle.tensors[output.tensor].name}", output.exchange) for output in bundle.outputs]
    return [(name, exchange) for name, exchange in named if exchange is not None]
