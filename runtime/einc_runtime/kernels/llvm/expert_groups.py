"""Products of the rows of all experts as one call of machine code (`experts_code.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einc_runtime.dtypes import Array
from einc_runtime.kernels.base import Kernel, Run, ScratchAllocator, ScratchArray, address, dtype_name
from einc_runtime.kernels.calls.experts import ExpertMatmulCall
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import ExpertArguments, FewRowsArguments, PackArguments, PanelArguments
from einc_runtime.kernels.llvm.compiler import CompiledCall
from einc_runtime.kernels.llvm.few_rows import PRODUCTS_PER_NS, UNIT_SCALE, choose_few_rows_form, multiplies_pairs
from einc_runtime.kernels.llvm.few_rows_layout import BYTES_PER_NS, MIN_DEPTH, MIN_LINES, WIDE
from einc_runtime.kernels.llvm.gemm import count_packed, emit_pack

if TYPE_CHECKING:
    from concurrent.futures import Future

READ_ROWS = {True: (1, 2, 4, 8), False: (1, 2, 4)}
"""Numbers of rows for which there is code that reads a matrix once, by whether registers have 512 bits. Fewer rows of
an expert are multiplied with some that are not looked at: reading its matrix takes longer."""
PANEL_ROWS = {True: (16, 32), False: (8, 16)}
"""The same for rows of a panel: up to two registers of sums for each line. There are several panels of the last."""
MAX_PANEL_ROWS = {True: 256, False: 512}
"""Rows of an expert in all panels. More are multiplied in parts, each of which reads the matrix."""
MAX_EXPECTED_ROWS = 128
"""Where experts have more rows than this in the mean, a library packs each matrix for them, which pays then."""


@dataclass(frozen=True, slots=True)
class _RowsProduct:
    """The code that multiplies up to `most` rows by a matrix, and the rows of the panels that it takes, 0 for none;
    `pairs` says that their elements are pairs of bf16."""

    most: int
    code: Future[compiler.Compiled]
    panel: int = 0
    pairs: bool = False


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """The kernel's call: products from that of the fewest rows on, and what it needs of scratch memory."""

    call: ExpertMatmulCall
    weight: Array
    products: tuple[_RowsProduct, ...]
    code: Future[compiler.Compiled]
    gathered: ScratchArray
    results: ScratchArray
    panels: ScratchArray
    numbers: ScratchArray
    scratch: int

    @staticmethod
    def of(call: ExpertMatmulCall, weight: Array) -> ExpertGroups | None:
        """None where rows and matrices are not dense along what is summed, or where a library is faster."""
        from einc_runtime.kernels.llvm.experts_code import ExpertsForm, emit_expert_products

        kinds = [dtype_name(array) for array in (weight, call.rows, call.target)]
        count, lines, depth = weight.shape
        dense = all(array.strides[-1] == array.itemsize for array in (weight, call.rows, call.target))
        if not dense or not {*kinds} <= compiler.COMPILED_FLOATS or lines < MIN_LINES or depth < MIN_DEPTH:
            return None
        gathered = call.rows.dtype if multiplies_pairs(*kinds[:2]) else WIDE
        products = _list_products(kinds[0], "f32" if gathered == WIDE else kinds[1], kinds[2], depth)
        most = products[-1].most
        if call.picks.size > call.experts * min(most, MAX_EXPECTED_ROWS):
            return None
        form = ExpertsForm(kinds[1], "f32" if gathered == WIDE else kinds[1], call.picks.itemsize, most)
        scratch = ScratchAllocator()
        panel_size = max((count_packed(product.panel, most, depth) for product in products if product.panel), default=0)
        return ExpertGroups(
            call,
            weight,
            products,
            emit_expert_products(form),
            scratch.take((most, depth), gathered),
            scratch.take((most, lines), call.target.dtype),
            scratch.take((panel_size,), WIDE),
            scratch.take((count + call.picks.size,), np.dtype(np.int64)),
            scratch.size,
        )

    @property
    def kernel(self) -> Kernel:
        # as many matrices are read as may have rows, each once
        read = min(self.weight.nbytes, self.call.picks.size * self.weight.strides[0])
        nanoseconds = max(self.call.multiplications / PRODUCTS_PER_NS, read / BYTES_PER_NS)
        return Kernel(self.bind, self.scratch, nanoseconds + 1.0 * self.call.target.size)

    def bind(self, memory: Array) -> Run:
        call, weight = self.call, self.weight
        numbers, gathered, results = (array.of(memory) for array in (self.numbers, self.gathered, self.results))
        bound = [self._bind_product(product, memory) for product in self.products]
        table = np.array([numbers for numbers, _ in bound], np.int64)
        arguments = ExpertArguments[int](
            slots=call.picks.size,
            width=call.picks.shape[1],
            picks=address(call.picks),
            pick_token=call.picks.strides[0],
            pick_slot=call.picks.strides[1],
            experts=call.experts,
            lower=call.lower,
            experts_here=call.count,
            rows=address(call.rows),
            row_token=call.rows.strides[0],
            row_slot=call.rows.strides[1],
            depth=call.rows.shape[2],
            target=address(call.target),
            target_token=call.target.strides[0],
            target_slot=call.target.strides[1],
            target_bytes=results.strides[0],
            weight=address(weight),
            weight_step=weight.strides[0],
            products=address(table),
            product_count=len(table),
            of_ends=address(numbers),
            of_order=address(numbers[call.count :]),
            of_gathered=address(gathered),
            gathered_step=gathered.strides[0],
            of_results=address(results),
        )
        kept = [array for _, arrays in bound for array in arrays]
        operands = call.picks, call.rows, weight, call.target, memory
        return CompiledCall(self.code, arguments, table, *kept, *operands, fail=call.require_picks)

    def _bind_product(self, product: _RowsProduct, memory: Array) -> tuple[list[int], list[Array]]:
        """The numbers that stand for a product in the table of all, and the arrays that it needs."""
        gathered, results = self.gathered.of(memory), self.results.of(memory)
        _, lines, depth = self.weight.shape
        vectors = self.panels.of(memory) if product.panel else gathered
        table = np.array([0, address(vectors), address(results)], np.int64)
        common = {"matrices": 1, "table": address(table), "lines": lines, "depth": depth, "scale": UNIT_SCALE}
        common |= {"line_step": self.weight.strides[1], "row_step": results.strides[0]}
        if not product.panel:
            of_rows = FewRowsArguments[int](**common, vector_step=gathered.strides[0])
            arguments = np.array(of_rows, np.int64)
            numbers = [product.most, compiler.find_address(product.code), address(arguments), address(table), 0, 0]
            return numbers, [table, arguments]
        common["depth"] = depth = depth // 2 if product.pairs else depth
        arguments = np.array(PanelArguments[int](**common, rows=0), np.int64)
        moved = np.array([address(gathered), address(vectors)], np.int64)
        of_packing = PackArguments[int](
            matrices=1, table=address(moved), lines=0, depth=depth, step=gathered.strides[0]
        )
        packing = np.array(of_packing, np.int64)
        codes = [compiler.find_address(code) for code in (product.code, emit_pack(product.panel, True))]
        numbers = [product.most, codes[0], address(arguments), address(table), codes[1], address(packing)]
        return numbers, [table, arguments, moved, packing]


def _list_products(weight: str, rows: str, result: str, depth: int) -> tuple[_RowsProduct, ...]:
    """The products for matrices and rows of these types, from that of the fewest rows on."""
    from einc_runtime.kernels.llvm.few_rows_code import emit_few_rows
    from einc_runtime.kernels.llvm.row_panels_code import PanelForm, emit_panel_product

    wide, registers = compiler.has_wide_registers(), compiler.find_registers()
    forms = [choose_few_rows_form(weight, rows, result, count, depth) for count in READ_ROWS[wide]]
    products = [_RowsProduct(form.rows, emit_few_rows(form)) for form in forms]
    pairs = multiplies_pairs(weight, rows) and depth % 2 == 0 and not compiler.multiplies_tiles()
    if wide and weight != "f32" and not pairs:  # libraries multiply more rows of these by instructions for them
        return tuple(products)
    few, many = PANEL_ROWS[wide]
    for count, most in ((few, few), (many, MAX_PANEL_ROWS[wide])):
        emit_pack(count, True)
        code = emit_panel_product(PanelForm(weight, result, count, registers, True, pairs))
        products.append(_RowsProduct(most, code, count, pairs))
    return tuple(products)
