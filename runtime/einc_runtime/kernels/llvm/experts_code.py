"""Emits the machine code that multiplies all slots of a tensor by the experts that they picked, expert by expert.

Slots are sorted by expert, and those of one keep their order. The rows of an expert are gathered, multiplied by code
for about so many rows (`few_rows_code.py`, `row_panels_code.py`), and put where they belong. So a task is one call,
however many experts there are, and no thread waits for the interpreter between two products.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.llvm.arguments import ExpertArguments, PackArguments, PanelArguments, read_arguments
from einc_runtime.kernels.llvm.emitter import BIT, I8, I64, Emitter, RowOperand, Value

PRODUCT_FIELDS = 6
"""Of a product: the most rows that it multiplies; its function, the arguments of that, and the table in these; and the
function that packs rows in panels, with its arguments, or 0 where the rows are taken as they are gathered."""
_CODE = ir.FunctionType(I64, [I64.as_pointer()])


class ExpertsForm(NamedTuple):
    """What the code is made for: the types of the rows and of what they are gathered as, the bytes of a pick, and the
    most rows of an expert that are multiplied at a time."""

    rows: str
    gathered: str
    pick_size: int
    most: int


@compiler.compile_once
def emit_expert_products(form: ExpertsForm) -> ir.Module:
    """With the arguments `ExpertArguments`. It returns 1 for a pick that is no expert, before it writes anything."""
    return _ExpertsEmitter(form).emit()


class _ExpertsEmitter:
    def __init__(self, form: ExpertsForm) -> None:
        self.form, self.e = form, Emitter()
        self.b = self.e.b
        self.a = read_arguments(self.e, ExpertArguments[Value])

    def emit(self) -> ir.Module:
        e, b, a = self.e, self.b, self.a
        with e.loop(a.slots) as slot:
            e.stop_if(b.icmp_unsigned(">=", self._read_pick(slot), a.experts), I64(1))  # a negative one is a large one
        self._sort()
        first = e.variable(I64(0))
        with e.loop(a.experts_here) as expert:
            matrix, stop = b.add(a.weight, b.mul(expert, a.weight_step)), e.read(a.of_ends, expert, I64)
            with e.span(b.load(first), stop, self.form.most) as start:
                self._multiply(matrix, start, e.least(b.sub(stop, start), I64(self.form.most)))
            b.store(stop, first)
        return e.finish()

    def _read_pick(self, slot: Value) -> Value:
        start = self._find(self.a.picks, self.a.pick_token, self.a.pick_slot, slot)
        return self.e.read_integer(RowOperand(start, [I64(0)]), I64(0), self.form.pick_size)

    def _find(self, start: Value, token_step: Value, slot_step: Value, slot: Value) -> Value:
        """The address of what an array of tokens and their slots has for one of all slots."""
        b = self.b
        token = b.sdiv(slot, self.a.width)
        within = b.sub(slot, b.mul(token, self.a.width))
        return b.add(start, b.add(b.mul(token, token_step), b.mul(within, slot_step)))

    def _find_target(self, slot: Value) -> Value:
        return self._find(self.a.target, self.a.target_token, self.a.target_slot, slot)

    def _sort(self) -> None:
        """Writes the slots in the order of their experts, and where those of each expert end. Clears the results of
        slots whose expert is elsewhere."""
        e, b, a = self.e, self.b, self.a

        def add(number: Value, count: Value) -> None:
            e.put(a.of_ends, number, b.add(e.read(a.of_ends, number, I64), count))

        with e.loop(a.experts_here) as expert:
            e.put(a.of_ends, expert, I64(0))
        with e.loop(a.slots) as slot:
            expert = b.sub(self._read_pick(slot), a.lower)
            following = b.add(expert, I64(1))  # whose slots begin where those of this one end
            with b.if_else(b.icmp_unsigned("<", expert, a.experts_here), likely=True) as (inside, outside):
                with inside, b.if_then(b.icmp_unsigned("<", following, a.experts_here)):
                    add(following, I64(1))
                with outside:
                    cleared = e.at(self._find_target(slot), I8)
                    e.intrinsic("llvm.memset.p0.i64", ir.VoidType(), cleared, I8(0), a.target_bytes, BIT(False))
        with e.span(I64(1), a.experts_here) as expert:
            add(expert, e.read(a.of_ends, b.sub(expert, I64(1)), I64))
        with e.loop(a.slots) as slot:
            expert = b.sub(self._read_pick(slot), a.lower)
            with b.if_then(b.icmp_unsigned("<", expert, a.experts_here), likely=True):
                e.put(a.of_order, e.read(a.of_ends, expert, I64), slot)
                add(expert, I64(1))

    def _multiply(self, matrix: Value, start: Value, count: Value) -> None:
        """Multiplies `count` slots from a place in their order by a matrix."""
        e, b, a = self.e, self.b, self.a
        with e.loop(count) as row:
            slot = e.read(a.of_order, b.add(start, row), I64)
            source = self._find(a.rows, a.row_token, a.row_slot, slot)
            self._gather(source, b.add(a.of_gathered, b.mul(row, a.gathered_step)))
        product = e.variable(I64(0))
        with e.loop(b.sub(a.product_count, I64(1))) as number:
            most = e.read(a.products, b.mul(number, I64(PRODUCT_FIELDS)), I64)
            with b.if_then(b.icmp_signed(">", count, most)):
                b.store(b.add(number, I64(1)), product)
        _, code, arguments, table, pack, pack_arguments = e.read_entry(a.products, b.load(product), PRODUCT_FIELDS)
        e.put(table, I64(0), matrix)
        with b.if_then(b.icmp_signed("!=", pack, I64(0))):
            e.put(pack_arguments, I64(PackArguments._fields.index("lines")), count)
            e.put(arguments, I64(PanelArguments._fields.index("rows")), count)
            self._call(pack, pack_arguments)
        self._call(code, arguments)
        with e.loop(count) as row:
            target = self._find_target(e.read(a.of_order, b.add(start, row), I64))
            e.copy(target, b.add(a.of_results, b.mul(row, a.target_bytes)), a.target_bytes)

    def _gather(self, source: Value, goal: Value) -> None:
        """Copies a row, or widens it."""
        e, rows, gathered = self.e, self.form.rows, self.form.gathered
        if rows == gathered:
            e.copy(goal, source, self.b.mul(self.a.depth, I64(ITEMSIZE[rows])))
            return
        e.sweep(self.a.depth, lambda k, mask: e.store(e.load(source, k, rows, mask), goal, k, gathered, mask))

    def _call(self, code: Value, arguments: Value) -> None:
        self.b.call(self.e.at(code, _CODE), [self.e.at(arguments, I64)])
