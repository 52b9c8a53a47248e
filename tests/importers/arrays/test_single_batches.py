"""A batch of one is left out, and what is computed without it reads nothing that was left out, too."""

from __future__ import annotations

from einc.frontend import build
from einc.importers.arrays.element_types import ElementType
from einc.importers.arrays.moving import reshape, transpose
from einc.importers.arrays.products import matmul
from einc.importers.arrays.program import ArrayProgram
from einc.importers.arrays.single_batches import drop_single_batches
from einc.importers.lifting import lift


def test_a_product_with_a_turned_weight_reads_it_as_it_lies() -> None:
    program = ArrayProgram("rows")
    program.lift = lift
    x = program.input("x", [5, 8], ElementType.F32)
    weight = program.weight("w", [6, 8], ElementType.F32, "w")
    product = matmul(program, reshape(program, x, [1, 5, 8]), transpose(program, weight, [1, 0]))
    program.output("y", reshape(program, product, [5, 6]))
    drop_single_batches(program)
    text = program.text()
    assert "* w[" in text
    assert "transpose" not in text
    assert build(text, "rows.ein").nodes
