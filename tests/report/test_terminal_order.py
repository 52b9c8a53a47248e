"""What of a large plan is shown: the operators that cost most in all, by elements and by time."""

from __future__ import annotations

from typing import Any

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.report import tables, terminal
from einc.report.document import explain

PARTS = ("compute_ms", "combine_ms", "waiting_ms", "exchange_ms", "critical_ms")


def part(name: str, *times: float) -> dict[str, Any]:
    return {"name": name, "time": dict(zip(PARTS, times, strict=True))}


def test_operators_stand_by_their_part_of_the_critical_path_and_the_rest_in_one_row(monkeypatch) -> None:
    monkeypatch.setattr(tables, "MAX_TABLE_ROWS", 3)
    ops = [part("a", 1, 0, 0, 0, 1), part("b", 2, 0, 0, 0, 2), part("c", 3, 0, 1, 0, 1), part("d", 0, 0, 0, 0.5, 0)]
    document = {"ops": ops, "outputs": [part("y", 0, 0, 0, 0, 4), part("z", 0, 0, 0, 0, 0)],
                "predicted_ms": 8.0, "time": {"tail_ms": 0.25}}  # fmt: skip
    rows = tables.tabulate_times(document, [[ops[0], ops[0]], [ops[1]], [ops[2]], [ops[3]]])
    assert [row[0] for row in rows] == ["time in ms", "output y", "a (x2)", "b", "2 more", "idle at the end"]
    assert rows[2][1:] == ["2.000", "-", "-", "-", "2.000", "25%"]
    assert rows[4][1:] == ["3.000", "-", "1.000", "0.500", "1.000", "12%"]
    assert rows[5][3] == "0.250"


def test_sections_are_of_the_kinds_that_cost_most_together(monkeypatch) -> None:
    """Four products of a kind cost more than one that is larger than each of them."""
    text = "model m\ndim n = 16; dim m = 24\ninput x : f32[n, n]\ninput z : f32[m, m]\nweight w : f32[n, n]\n"
    text += "a = matmul(x, w)\nb = matmul(a, w)\nc = matmul(b, w)\noutput y = matmul(c, w)\noutput u = matmul(z, z)\n"
    document = explain(compile_model(text, "m.ein", CompileOptions(machine="host", devices=1)).bundle)
    monkeypatch.setattr(terminal, "MAX_SECTIONS", 1)
    shown = terminal.format_overview(document)
    assert "a = matmul(x, w)" in shown
    assert "and 3 like it: b, c, y" in shown
    assert "u = matmul(z, z)" not in shown
    assert "1 shorter kinds of operators have no section here" in shown
