"""What `einc explain --against` prints: two plans side by side."""

from __future__ import annotations

from einc.report.paper_costs import COST_PARTS, sum_cost_parts, sum_costs
from einc.report.tables import align_columns, count_bytes_moved, describe_trust, format_cut
from einc.report.terminal import Emphasis, format_heading
from einc_runtime.strict_json import Document


def format_comparison(document: Document, against: Document, names: tuple[str, str], strong: Emphasis = str) -> str:
    """Two plans side by side: totals, and the operators that differ."""
    first, second = names
    lines = [strong(f"A = {first}: {format_heading(document)}")]
    lines += [strong(f"B = {second}: {format_heading(against)}"), ""]
    rows = [["", "A", "B", "B - A"]]
    a_ms, b_ms = document["predicted_ms"], against["predicted_ms"]
    if a_ms is not None and b_ms is not None:
        times = (f"{plan['predicted_ms']:,.3f}{describe_trust(plan)}" for plan in (document, against))
        rows.append(["predicted ms", *times, f"{b_ms - a_ms:+,.3f}"])
    totals = [
        ("most bytes on a site", max(document["memory_bytes"]), max(against["memory_bytes"])),
        ("bytes moved", count_bytes_moved(document), count_bytes_moved(against)),
        ("paper's cost", document["total_cost"], against["total_cost"]),
        *((f"  {part}", sum_costs(document, part), sum_costs(against, part)) for part in COST_PARTS),
    ]
    rows += [[name, f"{a:,}", f"{b:,}", f"{b - a:+,}"] for name, a, b in totals]
    lines += [*align_columns(rows), ""]
    first_operations, second_operations = ({op["name"]: op for op in plan["ops"]} for plan in (document, against))
    differing = [["operator", "cut in A", "cut in B", "ms in A", "ms in B", "cost A", "cost B"]]
    for name in [*first_operations, *(name for name in second_operations if name not in first_operations)]:
        a, b = first_operations.get(name), second_operations.get(name)
        if a is None or b is None or format_cut(a) != format_cut(b) or sum_cost_parts(a) != sum_cost_parts(b):
            differing.append([name, *(format_cut(x) if x else "-" for x in (a, b)),
                              *(f"{x['time']['critical_ms']:.3f}" if x and x["time"] else "-" for x in (a, b)),
                              *(f"{sum_cost_parts(x):,}" if x else "-" for x in (a, b))])  # fmt: skip
    lines += align_columns(differing, right=(3, 4, 5, 6)) if len(differing) > 1 else ["every operator is cut alike"]
    return "\n".join(lines) + "\n"
