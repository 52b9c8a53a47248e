"""Building blocks of compiled kernels: loops over rows and over vectors of elements, loads, stores and sums.

All code works on vectors of `LANES` elements; the last vector of a row is loaded and stored under a mask. Every lane
has its own sum, and lanes are added in one fixed order, so that equal arguments give equal bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from einc_runtime.dtypes import ITEMSIZE
from einc_runtime.kernels.llvm.compiler import LANES, SUM_CHAINS

Value = Any
"""A value in the module under construction."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64, HALF, BIT = ir.FloatType(), ir.DoubleType(), ir.HalfType(), ir.IntType(1)
_STORED = {"f32": F32, "f64": F64, "f16": HALF, "bf16": I16, "bool": I8, "i8": I8, "i32": I32, "i64": I64}
"""The element types that compiled kernels read and write: floats, bool and integers; i8 is only read, and few kernels
have f64."""

_numbers = itertools.count()


def vector(element: Any) -> Any:
    return ir.VectorType(element, LANES)


class Emitter:
    """One function under construction. Its arguments are 64-bit integers, read by position. It returns 0, or what
    `stop` says."""

    def __init__(self) -> None:
        self.module = ir.Module(name=f"kernel{next(_numbers)}")
        kind = ir.FunctionType(I64, [I64.as_pointer()])
        function = ir.Function(self.module, kind, name=self.module.name)
        self.b = ir.IRBuilder(function.append_basic_block())
        self._arguments, self._taken = function.args[0], 0

    def argument(self) -> Value:
        pointer = self.b.gep(self._arguments, [I64(self._taken)])
        self._taken += 1
        return self.b.load(pointer)

    def operand(self, leading: int) -> RowOperand:
        """The next arguments: an address and the strides of `leading` axes."""
        return RowOperand(self.argument(), [self.argument() for _ in range(leading)])

    def variable(self, initial: Value) -> Value:
        """A variable, which becomes a register when the module is compiled."""
        with self.b.goto_entry_block():
            pointer = self.b.alloca(initial.type)
        self.b.store(initial, pointer)
        return pointer

    def stop_if(self, condition: Value, status: Value) -> None:
        """Returns a status other than 0 here if the condition holds."""
        with self.b.if_then(condition, likely=False):
            self.b.ret(status)

    def finish(self) -> Any:
        self.b.ret(I64(0))
        return self.module

    # Numbers

    def broadcast(self, value: Value) -> Value:
        """A scalar in every lane."""
        empty = ir.Constant(vector(value.type), ir.Undefined)
        first = self.b.insert_element(empty, value, I32(0))
        return self.b.shuffle_vector(first, empty, ir.Constant(vector(I32), [0] * LANES))

    def number(self, value: float, element: Any = F32) -> Value:
        return ir.Constant(vector(element), [value] * LANES)

    def intrinsic(self, name: str, result: Any, *arguments: Value) -> Value:
        """A call of an LLVM intrinsic by its full name."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [x.type for x in arguments]), name=name)
        return self.b.call(known, arguments)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        return self.intrinsic(f"llvm.fmuladd.v{LANES}{_suffix(a)}", a.type, a, b, c)

    def fuse_multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic(f"llvm.fma.v{LANES}{_suffix(a)}", a.type, a, b, c)

    def square_root(self, a: Value) -> Value:
        return self.intrinsic(f"llvm.sqrt.v{LANES}{_suffix(a)}", a.type, a)

    def magnitude(self, a: Value) -> Value:
        return self.intrinsic(f"llvm.fabs.v{LANES}{_suffix(a)}", a.type, a)

    def larger(self, a: Value, b: Value) -> Value:
        """The larger value; NaN if one of them is."""
        larger = self.b.select(self.b.fcmp_ordered(">", a, b), a, b)
        return self.b.select(self.b.fcmp_unordered("uno", a, a), a, larger)

    def smaller(self, a: Value, b: Value) -> Value:
        """The smaller value; NaN if one of them is."""
        smaller = self.b.select(self.b.fcmp_ordered("<", a, b), a, b)
        return self.b.select(self.b.fcmp_unordered("uno", a, a), a, smaller)

    def least(self, a: Value, b: Value) -> Value:
        """The smaller of two integers."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def most(self, a: Value, b: Value) -> Value:
        """The larger of two integers."""
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def lanes_below(self, count: Value) -> Value:
        """The mask of the first `count` lanes; an integer of 32 bits holds the count."""
        lanes = ir.Constant(vector(I32), list(range(LANES)))
        return self.b.icmp_signed("<", lanes, self.broadcast(self.b.trunc(count, I32)))

    # Loops

    @contextmanager
    def loop(self, stop: Value, step: int = 1) -> Iterator[Value]:
        """A loop for 0, step, 2 * step, ... below stop; its body is emitted inside."""
        with self.span(I64(0), stop, step) as index:
            yield index

    @contextmanager
    def span(self, start: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """A loop for start, start + step, ... below stop; its body is emitted inside."""
        b = self.b
        before, head, body, end = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(I64)
        index.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", index, stop), body, end)
        b.position_at_end(body)
        yield index
        following = b.add(index, I64(step))
        index.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(end)

    def sweep(self, count: Value, body: Callable[[Value, Value | None], None]) -> None:
        """Calls `body(position, mask)` for the vectors of a row of `count` elements; only the last one has a mask."""
        b = self.b
        full = b.and_(count, I64(-LANES))
        with self.loop(full, LANES) as position:
            body(position, None)
        left = b.sub(count, full)
        with b.if_then(b.icmp_signed(">", left, I64(0))):
            body(full, self.lanes_below(left))

    @contextmanager
    def rows(self, extents: Sequence[Value], operands: Sequence[RowOperand]) -> Iterator[list[Value]]:
        """A loop over all index vectors of the leading axes; yields the address of every operand's row."""
        if not extents:
            yield [operand.address for operand in operands]
            return
        with self.loop(extents[0]) as index:
            inner = [
                RowOperand(self.b.add(operand.address, self.b.mul(index, operand.strides[0])), operand.strides[1:])
                for operand in operands
            ]
            with self.rows(extents[1:], inner) as rows:
                yield rows

    # Memory

    def at(self, address: Value, kind: Any) -> Value:
        """The pointer to what is of a type of LLVM at an address."""
        return self.b.inttoptr(address, kind.as_pointer())

    def load_first(self, address: Value, count: Value, kind: Any) -> Value:
        """The first elements of a vector of this type of LLVM; the others, which may be behind all memory, are 0."""
        b, numbers = self.b, ir.VectorType(I8, kind.count)
        empty = ir.Constant(numbers, ir.Undefined)
        first = b.insert_element(empty, b.trunc(count, I8), I32(0))
        counts = b.shuffle_vector(first, empty, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))
        mask = b.icmp_signed("<", ir.Constant(numbers, list(range(kind.count))), counts)
        name, nothing = f"llvm.masked.load.v{kind.count}i{kind.element.width}.p0", ir.Constant(kind, [0] * kind.count)
        return self.intrinsic(name, kind, self.at(address, kind), I32(1), mask, nothing)

    def load(self, row: Value, position: Value, kind: str, mask: Value | None) -> Value:
        """Elements from `position` of a row: floats as f32, bool as bits; 0 where the mask is off."""
        return self.widen(self._load_stored(row, position, kind, mask), kind)

    def load_bytes(self, row: Value, position: Value, mask: Value | None) -> Value:
        """Bytes from `position` of a row as integers of 32 bits from 0 to 255; 0 where the mask is off."""
        return self.b.zext(self._load_stored(row, position, "i8", mask), vector(I32))

    def _load_stored(self, row: Value, position: Value, kind: str, mask: Value | None) -> Value:
        stored = _STORED[kind]
        pointer = self._place(row, position, stored)
        if mask is None:
            value = self.b.load(pointer, align=ITEMSIZE[kind])
        else:
            nothing = ir.Constant(vector(stored), [0.0 if stored in (F32, F64, HALF) else 0] * LANES)
            name = f"llvm.masked.load.v{LANES}{_element(stored)}.p0"
            value = self.intrinsic(name, vector(stored), pointer, I32(ITEMSIZE[kind]), mask, nothing)
        return value

    def load_one(self, row: Value, kind: str) -> Value:
        """A row's single element in every lane."""
        stored = _STORED[kind]
        element = self.b.load(self.at(row, stored))
        if kind == "bf16":  # twice in each lane, of which the upper half stays: a load alone puts it there
            pairs = self.b.insert_element(ir.Constant(ir.VectorType(I16, 2 * LANES), ir.Undefined), element, I32(0))
            pairs = self.b.shuffle_vector(pairs, pairs, ir.Constant(ir.VectorType(I32, 2 * LANES), [0] * 2 * LANES))
            bits = self.b.and_(self.b.bitcast(pairs, vector(I32)), self.number(0xFFFF0000, I32))
            return self.b.bitcast(bits, vector(F32))
        return self.widen(self.broadcast(element), kind)

    def store(self, value: Value, row: Value, position: Value, kind: str, mask: Value | None) -> None:
        stored = _STORED[kind]
        pointer = self._place(row, position, stored)
        value = self.round_to(value, kind)
        if mask is None:
            self.b.store(value, pointer, align=ITEMSIZE[kind])
        else:
            name = f"llvm.masked.store.v{LANES}{_element(stored)}.p0"
            self.intrinsic(name, ir.VoidType(), value, pointer, I32(ITEMSIZE[kind]), mask)

    def prefetch(self, row: Value, position: Value, *, near: bool = False, write: bool = False) -> None:
        """Says that the byte at a position of a row is read (or written) soon; it need not be there.

        Unless it is to come `near`, it comes into the second cache: the first one has no room for it beside what is
        read again and again.
        """
        pointer = self.b.gep(self.at(row, I8), [position])
        self.intrinsic("llvm.prefetch.p0", ir.VoidType(), pointer, I32(int(write)), I32(2 + near), I32(1))

    def store_one(self, value: Value, target: Value, kind: str) -> None:
        """Writes the first lane to an address."""
        first = self.b.extract_element(self.round_to(value, kind), I32(0))
        self.b.store(first, self.at(target, first.type))

    def read(self, table: Value, number: Value, element: Any) -> Value:
        return self.b.load(self.b.gep(self.at(table, element), [number]))

    def read_entry(self, table: Value, number: Value, count: int) -> list[Value]:
        """Reads the `count` addresses of an entry of a table."""
        first = self.b.mul(number, I64(count))
        return [self.read(table, self.b.add(first, I64(n)), I64) for n in range(count)]

    def read_integer(self, line: RowOperand, number: Value, size: int) -> Value:
        """Reads an integer of `size` bytes, with its sign, of an array with one axis."""
        source = self.b.add(line.address, self.b.mul(number, line.strides[0]))
        kind = ir.IntType(8 * size)
        value = self.b.load(self.at(source, kind), align=1)
        return value if kind == I64 else self.b.sext(value, I64)

    def put(self, table: Value, number: Value, value: Value) -> None:
        """Writes a scalar of an array."""
        self.b.store(value, self.b.gep(self.at(table, value.type), [number]))

    def copy(self, target: Value, source: Value, count: Value) -> None:
        """Copies bytes from one address to another."""
        places = [self.at(address, I8) for address in (target, source)]
        self.intrinsic("llvm.memcpy.p0.p0.i64", ir.VoidType(), *places, count, BIT(False))

    def transpose_square(self, lines: Sequence[Value]) -> list[Value]:
        """The transpose of a square of `LANES` vectors: opposite quarters are exchanged, in smaller and smaller
        squares."""
        lines, width = list(lines), LANES // 2
        while width:
            orders = [
                [lane - (lane & width) + shift + (LANES if lane & width else 0) for lane in range(LANES)]
                for shift in (0, width)
            ]
            masks = [ir.Constant(vector(I32), order) for order in orders]
            for n in range(LANES):
                if not n & width:
                    pair = lines[n], lines[n + width]
                    lines[n], lines[n + width] = (self.b.shuffle_vector(*pair, mask) for mask in masks)
            width //= 2
        return lines

    def sum_lanes(self, lines: Sequence[Value]) -> Value:
        """The sums of the lanes of `LANES` vectors, each in a lane of its own, added up in one fixed order."""
        parts = self.transpose_square(lines)
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.b.fadd(left, right) for left, right in zip(parts[:half], parts[half:], strict=True)]
        return parts[0]

    def round_to(self, value: Value, kind: str) -> Value:
        """Values in their stored type: ties are rounded to even, and every NaN becomes a quiet one."""
        b = self.b
        if kind == "f16":
            return b.fptrunc(value, vector(HALF))
        if kind == "bool":
            return b.zext(value, vector(I8))
        if kind in ("f32", "f64", "i32", "i64"):
            return value
        bits = b.bitcast(value, vector(I32))
        high = b.lshr(bits, self.number(16, I32))
        odd = b.and_(high, self.number(1, I32))
        up = b.lshr(b.add(b.add(bits, odd), self.number(0x7FFF, I32)), self.number(16, I32))
        quiet = b.or_(high, self.number(0x40, I32))
        return b.trunc(b.select(b.fcmp_unordered("uno", value, value), quiet, up), vector(I16))

    def widen(self, value: Value, kind: str) -> Value:
        b = self.b
        if kind == "f16":
            return b.fpext(value, vector(F32))
        if kind == "bf16":
            return b.bitcast(b.shl(b.zext(value, vector(I32)), self.number(16, I32)), vector(F32))
        if kind == "i8":
            return b.sitofp(value, vector(F32))
        return b.icmp_unsigned("!=", value, self.number(0, I8)) if kind == "bool" else value

    def _place(self, row: Value, position: Value, stored: Any) -> Value:
        first = self.b.gep(self.at(row, stored), [position])
        return self.b.bitcast(first, vector(stored).as_pointer())

    # Folds

    def fold(
        self,
        count: Value,
        neutral: Value,
        combine: Callable[[Value, Value], Value],
        term: Callable[[Value, Value | None], Value],
    ) -> Value:
        """Combines the terms of a row of `count` elements; the result is in every lane. Combining with `neutral`
        changes nothing."""
        places = [self.variable(neutral) for _ in range(SUM_CHAINS)]

        def body(chain: int, position: Value, mask: Value | None) -> None:
            value = term(position, mask)
            if mask is not None:
                value = self.b.select(mask, value, neutral)
            self.b.store(combine(self.b.load(places[chain]), value), places[chain])

        self.sweep_chains(count, SUM_CHAINS, body)
        total = self.b.load(places[0])
        for variable in places[1:]:
            total = combine(total, self.b.load(variable))
        return self.across(total, combine)

    def sweep_chains(self, count: Value, chains: int, body: Callable[[int, Value, Value | None], None]) -> None:
        """Calls `body(chain, position, mask)` for the vectors of a row, in turn for each chain, so that none waits for
        the one before; what is left is for the first."""
        full = I64(0)
        if chains > 1:
            step = chains * LANES
            full = self.b.and_(count, I64(-step))
            with self.loop(full, step) as position:
                for chain in range(chains):
                    body(chain, self.b.add(position, I64(chain * LANES)), None)
        left = self.b.sub(count, full)
        self.sweep(left, lambda position, mask: body(0, self.b.add(full, position), mask))

    def total(self, count: Value, term: Callable[[Value, Value | None], Value]) -> Value:
        """The sum of the terms in f64, rounded once."""
        wide = self.fold(
            count,
            self.number(0.0, F64),
            lambda left, right: self.b.fadd(left, right),
            lambda position, mask: self.b.fpext(term(position, mask), vector(F64)),
        )
        return self.b.fptrunc(wide, vector(F32))

    def across(self, lanes: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Combines all lanes, halves first; the result is in every lane."""
        width = LANES // 2
        while width:
            order = ir.Constant(vector(I32), [(lane + width) % LANES for lane in range(LANES)])
            lanes = combine(lanes, self.b.shuffle_vector(lanes, lanes, order))
            width //= 2
        return lanes


@dataclass(frozen=True, slots=True)
class RowOperand:
    """An array: its address, and a byte stride for every leading axis."""

    address: Value
    strides: list[Value]


def _element(stored: Any) -> str:
    return {F32: "f32", F64: "f64", HALF: "f16", I16: "i16", I8: "i8", I32: "i32", I64: "i64"}[stored]


def _suffix(value: Value) -> str:
    return "f64" if value.type.element == F64 else "f32"
