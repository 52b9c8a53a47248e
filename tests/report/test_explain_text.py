"""What `einc explain` says of a small plan, to the letter (`pytest --update-golden`): all, an operator, two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc.report.comparison import format_comparison
from einc.report.document import explain
from einc.report.terminal import format_operator, format_overview

GOLDEN = Path(__file__).with_name("golden_explain.txt")
TEXT = """model small
dim n = 12
dim m = 30
input x : f32[n, m]
weight w : f32[m, n]
weight v : f32[n, n]
p = matmul(x, w)
q = relu(p)
r = softmax(matmul(q, v))
output r, p
"""


def document(sites: int, op: str | None = None) -> dict[str, Any]:
    options = CompileOptions(machine="dgx-a100", devices=sites, schedule="naive")
    return explain(compile_model(TEXT, "small.ein", options).bundle, only=op)


def strong(text: str) -> str:
    return f"<{text}>"


def test_explanations_read_as_agreed(update_golden: bool) -> None:
    text = "\n".join(
        [
            format_overview(document(5), strong),
            format_overview(document(2), strong, paper=True),
            format_operator(document(5, "p"), strong),
            format_comparison(document(5), document(2), ("five", "two"), strong),
        ]
    )
    if update_golden:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
