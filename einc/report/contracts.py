"""Whether a plan keeps to contracts, with the figures found: the asserts of `einc check`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any

from einc.errors import OperatorError, UsageError
from einc.logical.pins import PinnedCut, parse_cut
from einc.logical.reach import find_index
from einc.ops.base import Operator
from einc.plan_reading.restore import restore_graph
from einc.report.contract_text import (
    BASE_UNITS,
    QUANTITIES,
    RELATIONS,
    Contract,
    CutContract,
    FigureContract,
)
from einc.report.tables import NOT_MEASURED, describe_trust, format_cut
from einc_runtime.plan.schema import Bundle, Operation
from einc_runtime.strict_json import Document
from einc_runtime.text import did_you_mean, escape_text, format_count, format_memory, quote_names

MAX_CUTS = 4
"""Operators that are named where they are cut otherwise than a contract says; the document has all."""

_MISSING = {
    "speedup": "the plan was not compared with one site: compile it with --baseline single",
}
_UNKNOWN = "the plan is too large to be timed here, or its programs are too long"


@dataclass(frozen=True, slots=True)
class Finding:
    """A contract, whether a plan keeps to it, and what was measured: `measured` for people, `document` for scripts."""

    contract: Contract
    holds: bool
    measured: str
    document: Document


def check_contracts(contracts: Sequence[Contract], bundle: Bundle, document: Document) -> list[Finding]:
    """One finding for each contract; `document` is that of `explain` for the plan.

    A figure that the plan does not tell does not hold. Raises UsageError for a cut of operators or along indices that
    the plan does not have.
    """
    figures = measure(document)
    cuts = _PlanCuts(bundle)
    findings = []
    for contract in contracts:
        match contract:
            case FigureContract():
                findings.append(_check_figure(contract, figures[contract.quantity], document))
            case CutContract():
                findings.append(_check_cut(contract, cuts, document))
    return findings


def measure(document: Document) -> dict[str, float | None]:
    """All quantities of a plan, in ms, bytes, elements or as plain numbers; None where the plan does not tell."""
    parts = [*document["ops"], *document["outputs"]]
    exchanges = [part["exchange"] for part in parts if part["exchange"] is not None]
    taken, naive, bound = (_add(exchange[field] for exchange in exchanges)
                           for field in ("completion_ms", "naive_ms", "bound_ms"))  # fmt: skip
    critical = document["time"]["critical"] if document["time"] is not None else {}
    used = {spec["site"] for operation in document["ops"] for spec in operation["specs"]}
    costs = {part: sum(operation["cost"][part] for operation in document["ops"])
             for part in ("repartition", "join", "aggregation")}  # fmt: skip
    return {
        "predicted_ms": document["predicted_ms"],
        "compute_ms": critical.get("compute_ms"),
        "combine_ms": critical.get("combine_ms"),
        "transfer_ms": critical.get("transfer_ms"),
        "exchange_ms": taken,
        "naive_ms": naive,
        "bound_ms": bound,
        "bound_ratio": _find_ratio(taken, bound),
        "speedup": _find_speedup(document),
        "comm_bytes": sum(part["moves"]["bytes"] for part in parts),
        "transfers": sum(part["moves"]["transfers"] for part in parts),
        "memory": max(document["memory_bytes"]),
        "weights": _find_largest(document["weights"], "site_bytes"),
        "replicated_weights": _find_largest(document["weights"], "replicated_bytes"),
        "sites": document["devices"],
        "idle_sites": document["devices"] - len(used),
        "operators": len(document["ops"]),
        "cost": document["total_cost"],
        **costs,
    }


def format_figure(quantity: str, value: float | None) -> str:
    """A quantity for people: `0.123 ms`, `12.5 MiB (13,107,200 B)`."""
    if value is None:
        return "unknown"
    match QUANTITIES[quantity][0]:
        case "time":
            return f"{value:,.6g} ms"
        case "bytes":
            return f"{format_memory(int(value))} ({int(value):,} B)" if value >= 10_240 else f"{int(value):,} B"
        case "ratio":
            return f"{value:,.4g}"
        case _:
            return f"{value:,}"


def _add(times: Any) -> float | None:
    total = 0.0
    for time in times:
        if time is None:
            return None
        total += time
    return total


def _find_ratio(taken: float | None, bound: float | None) -> float | None:
    if taken is None or bound is None:
        return None
    if not taken:
        return 1.0
    return taken / bound if bound else None


def _find_speedup(document: Document) -> float | None:
    """Over the plan on one site, where the plan was compared with it, or is on one site itself."""
    if document["devices"] == 1:
        return 1.0
    times = [
        row["predicted_ms"] for row in (*document["baselines"], *document["contenders"]) if row["name"] == "single"
    ]
    alone = next((time for time in times if time is not None), None)
    predicted_ms = document["predicted_ms"]
    return None if alone is None or not predicted_ms else alone / predicted_ms


def _find_largest(rows: Sequence[Document], field: str) -> int:
    return max((sum(column) for column in zip(*(row[field] for row in rows), strict=True)), default=0)


def _check_figure(contract: FigureContract, value: float | None, plan: Document) -> Finding:
    kind = QUANTITIES[contract.quantity][0]
    measured = f"{contract.quantity} is {format_figure(contract.quantity, value)}"
    if value is not None and kind == "time":
        measured += _describe_trust(contract.quantity, plan)
    if value is None:
        measured += f": {_MISSING.get(contract.quantity, _UNKNOWN)}"
    holds = value is not None and RELATIONS[contract.comparison](value, contract.limit)
    document = {
        "assert": contract.text,
        "where": contract.where,
        "holds": holds,
        "quantity": contract.quantity,
        "figure": value,
        "limit": contract.limit,
        "unit": BASE_UNITS[kind] or None,
        "operators": None,
    }
    return Finding(contract, holds, measured, document)


class _PlanCuts:
    """The operators of a plan by their names, with what is needed to understand the names of their dimensions."""

    def __init__(self, bundle: Bundle) -> None:
        self.sites = len(bundle.devices)
        self.names: dict[str, Operation] = {}
        for operation in bundle.operations:
            for tensor in operation.outputs:
                self.names[bundle.tensors[tensor].name] = operation
        self._bundle = bundle
        self._operators: Mapping[str, Operator] | None = None

    def find_operations(self, contract: CutContract) -> list[Operation]:
        """The operators that a contract means. Raises UsageError where there are none."""
        matches = re.compile(translate(contract.pin.pattern)).match
        operations = {operation.name: operation for name, operation in self.names.items() if matches(name)}
        if not operations:
            near = did_you_mean(re.sub(r"[*?\[\]]", "", contract.pin.pattern), self.names)
            raise UsageError(
                f"'{escape_text(contract.text)}' matches no operator",
                where=contract.where,
                hint=(f"{near} " if near else "")
                + f"operators have the names of their outputs, after fusion: {quote_names(list(self.names), 12)}",
            )
        return list(operations.values())

    def fits(self, operation: Operation, cut: PinnedCut, contract: CutContract) -> bool:
        """Whether an operator is cut so. Raises UsageError where it has no such index."""
        required_counts: dict[str, int] = {}
        replicas = cut.replicas or self.sites
        for name, count in cut.counts:
            index = self._find_index(operation, name)
            if index is None and name == "replicas":
                replicas = count
            elif index is None:
                offers = ", ".join(offered.name for offered in operation.indices) or "nothing"
                raise UsageError(
                    f"'{escape_text(contract.text)}': operator '{operation.name}' has no index "
                    f"'{escape_text(name, 60)}'",
                    where=contract.where,
                    hint=f"{operation.title} can be cut along {offers}",
                )
            else:
                required_counts[index] = count
        counts = {index.name: len(index.intervals) for index in operation.indices}
        if cut.is_open:
            return all(counts[name] == count for name, count in required_counts.items()) and (
                replicas == 1 or operation.replicas == replicas
            )
        exactly = all(count == required_counts.get(name, 1) for name, count in counts.items())
        return exactly and operation.replicas == replicas

    def _find_index(self, operation: Operation, name: str) -> str | None:
        if any(index.name == name for index in operation.indices):
            return name
        if self._operators is None:
            try:
                self._operators = {node.name: node.operator for node in restore_graph(self._bundle).nodes}
            except OperatorError:
                self._operators = {}  # of another version of einc: only the names of indices are known
        known = self._operators.get(operation.name)
        return None if known is None else find_index(known, name)


def _describe_trust(quantity: str, plan: Document) -> str:
    """What is said after a time of a plan; only that of the whole plan has a range."""
    if quantity == "predicted_ms":
        return describe_trust(plan)
    return f", {NOT_MEASURED}" if plan["rates"] == "peak" else ""


def _check_cut(contract: CutContract, cuts: _PlanCuts, document: Document) -> Finding:
    cut = parse_cut(contract.pin)
    operations = cuts.find_operations(contract)
    shown = {row["name"]: format_cut(row) for row in document["ops"]}
    wrong = [
        operation.name
        for operation in operations
        if cuts.fits(operation, cut, contract) != (contract.comparison == "==")
    ]
    some = [f"{escape_text(name, 100)} is cut {shown[name]}" for name in (wrong or [operations[0].name])[:MAX_CUTS]]
    some += [f"and {len(wrong) - MAX_CUTS} more"] if len(wrong) > MAX_CUTS else []
    count = f"{len(wrong)} of {format_count(len(operations), 'operator')} not so: " if wrong else ""
    further = f", and so are {len(operations) - 1} more" if not wrong and len(operations) > 1 else ""
    rows = [
        {"operator": operation.name, "cut": shown[operation.name], "holds": operation.name not in wrong}
        for operation in operations
    ]
    cut_document: Document = {
        "assert": contract.text,
        "where": contract.where,
        "holds": not wrong,
        "quantity": "cut",
        "figure": None,
        "limit": None,
        "unit": None,
        "operators": rows,
    }
    return Finding(contract, not wrong, f"{count}{', '.join(some)}{further}", cut_document)
