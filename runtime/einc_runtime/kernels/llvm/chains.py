"""Calls of machine code that follow each other, as one call.

Between two calls, a thread takes the interpreter's lock and gives it away again. Where two threads do that, it takes
longer than a small kernel does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einc_runtime.kernels.base import Run, address
from einc_runtime.kernels.llvm import compiler
from einc_runtime.kernels.numpy.pieces import CallSequence, Resolved

_FIELDS = 2


class CompiledChain:
    """Compiled calls in their order. Where one fails, it raises what that call raises alone, and those after it do not
    run. `failed` is the number of that call."""

    __slots__ = ("_address", "_calls", "_function", "_kept", "failed")

    def __init__(self, calls: Sequence[compiler.CompiledCall]) -> None:
        table = np.array([call.places for call in calls], np.int64)
        arguments = np.array([table.size, address(table)], np.int64)
        self._function, self._address = _emit_chain().result(), address(arguments)
        self._calls, self._kept, self.failed = calls, (table, arguments), 0

    def __call__(self) -> None:
        failed = self._function(self._address)
        if failed:
            self.failed = failed - 1
            self._calls[self.failed].fail()


@dataclass(frozen=True, slots=True)
class JoinedCall:
    """A call that makes calls of several runs, `owners`: one run for each call of a chain."""

    call: Resolved
    owners: tuple[int, ...]

    @property
    def owner(self) -> int:
        """The run whose call was the last one to fail."""
        function = self.call[0]
        return self.owners[function.failed] if isinstance(function, CompiledChain) else self.owners[0]


def join_runs(runs: Mapping[int, Run]) -> list[JoinedCall]:
    """The calls that make numbered runs in their order, as few as possible."""
    joined = []
    for compiled, group in itertools.groupby(_list_calls(runs), lambda owned: _is_compiled(owned[1])):
        owned = list(group)
        own = [call for _, (call, _) in owned if isinstance(call, compiler.CompiledCall)]
        if compiled and len(own) > 1:
            joined.append(JoinedCall((CompiledChain(own), []), tuple(owner for owner, _ in owned)))
        else:
            joined += [JoinedCall(call, (owner,)) for owner, call in owned]
    return joined


def _list_calls(runs: Mapping[int, Run]) -> Iterator[tuple[int, Resolved]]:
    """Every call with the number of its run."""
    for owner, run in runs.items():
        for call in _flatten((run, [])):
            yield owner, call


def _flatten(call: Resolved) -> Iterator[Resolved]:
    if isinstance(call[0], CallSequence):
        for each in call[0].calls:
            yield from _flatten(each)
    else:
        yield call


def _is_compiled(call: Resolved) -> bool:
    return isinstance(call[0], compiler.CompiledCall)


@compiler.compile_once
def _emit_chain() -> Any:
    """Calls functions by a table of their addresses and those of their arguments; returns the number of the first one
    that fails, from 1."""
    from llvmlite import ir

    from einc_runtime.kernels.llvm.emitter import I64, Emitter

    e = Emitter()
    b = e.b
    count, table = e.argument(), e.argument()
    kind = ir.FunctionType(I64, [I64.as_pointer()])
    with e.loop(count, _FIELDS) as place:
        code, arguments = e.read(table, place, I64), e.read(table, b.add(place, I64(1)), I64)
        status = b.call(b.inttoptr(code, kind.as_pointer()), [b.inttoptr(arguments, I64.as_pointer())])
        number = b.add(b.sdiv(place, I64(_FIELDS)), I64(1))
        e.stop_if(b.icmp_signed("!=", status, I64(0)), number)
    return e.finish()
