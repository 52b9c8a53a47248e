"""Machine code of products of a quantized weight with some rows, packed in a panel (`row_panels_code.py`).

A part of some lines of the weight is widened in memory of the first cache, once for all rows. Where registers are few,
and rows are too many to be multiplied by elements of the weight that stay in them, that is faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import PanelArguments, QuantizedArguments, read_arguments
from einc_runtime.kernels.llvm.compiler import LANES
from einc_runtime.kernels.llvm.emitter import I64, Value
from einc_runtime.kernels.llvm.quantized_code import (
    WeightForm,
    WeightGroup,
    WeightReader,
    WeightRow,
    read_factor,
    store_widened,
)
from einc_runtime.kernels.llvm.row_panels_code import WIDENED, PanelEmitter, PanelForm


class WeightPanelForm(NamedTuple):
    """What the code is made for: how the weight is stored, of up to sixteen rows, and the bits of the scale."""

    weight: WeightForm
    panel: PanelForm
    scale: int


def suits_panels(form: WeightForm) -> bool:
    """Whether a part of a line that is widened at a time has whole groups."""
    return form.group == 0 or WIDENED % form.group == 0


@compiler.compile_once
def emit_panel_product(form: WeightPanelForm) -> ir.Module:
    """The arguments are `QuantizedArguments`; a row of the target is dense. The memory where the tensor is laid out has
    `gemm.count_packed` elements."""
    return _WeightPanelEmitter(form).emit()


class _WeightPanelEmitter(PanelEmitter):
    def __init__(self, form: WeightPanelForm) -> None:
        self.stored = form
        super().__init__(form.panel)

    def _take_arguments(self) -> PanelArguments[Value]:
        weight, none = self.stored.weight, I64(0)
        self.of_weight = read_arguments(self.e, QuantizedArguments[Value])
        self.reader = WeightReader(self.e, weight, self.of_weight)
        return PanelArguments[Value](
            matrices=none,
            table=none,
            lines=self.of_weight.rows,
            depth=self.b.mul(self.of_weight.width, I64(weight.packing)),
            line_step=self.of_weight.row_step,
            row_step=self.of_weight.target_row,
            scale=none,
            rows=I64(self.form.rows),
        )

    def emit(self) -> ir.Module:
        self._pack()
        scale = self.e.number(read_factor(self.stored.scale))
        self.multiply_lines(I64(0), self.of_weight.laid, self.of_weight.target, scale)
        return self.e.finish()

    def _pack(self) -> None:
        """Writes the rows side by side at each position. A vector is written for each, of which the next position
        overwrites what is not of the panel."""
        e, b = self.e, self.b
        rows = [b.add(self.of_weight.tensor, b.mul(self.of_weight.tensor_step, I64(m))) for m in range(self.form.rows)]
        step = I64(self.form.width * ITEMSIZE["f32"])

        def transpose(position: Value, mask: Value | None) -> None:
            read = [e.load(row, position, self.stored.weight.widened, mask) for row in rows]
            nothing = [e.number(0.0)] * (LANES - len(read))
            for n, value in enumerate(e.transpose_square([*read, *nothing])):
                goal = b.add(self.of_weight.laid, b.mul(b.add(position, I64(n)), step))
                e.store(value, goal, I64(0), "f32", None)

        e.sweep(self.a.depth, transpose)

    def _find_line(self, matrix: Value, number: Value) -> WeightRow:
        return self.reader.row(number)

    def _widen(self, lines: list[Any], start: Value, count: Value, ahead: Value) -> list[Value]:
        e, b, weight, goals = self.e, self.b, self.stored.weight, self.list_widened()
        first = b.sdiv(start, I64(weight.packing))
        group = b.sdiv(start, I64(weight.group)) if weight.group else I64(0)
        width = b.sdiv(count, I64(weight.packing))
        for line, goal in zip(lines, goals, strict=True):
            part = WeightRow(
                b.add(line.values, first),
                b.add(line.scales, b.mul(group, self.of_weight.scale_step)),
                b.add(line.zeros, b.mul(group, self.of_weight.zero_step)),
            )

            def widen(
                groups: list[WeightGroup],
                position: Value,
                mask: Value | None,
                part: WeightRow = part,
                goal: Value = goal,
            ) -> None:
                e.prefetch(b.add(part.values, ahead), position)
                store_widened(self.reader, (part, groups[0]), (position, mask, width), goal, "f32")

            self.reader.sweep([part], width, widen)
        return goals
