"""Device programs as tests look at them: tasks by kind, tensors by name, exchanges as programs."""

from __future__ import annotations

from einc.exchange.language.parser import parse
from einc.exchange.language.program import Program
from einc.exchange.language.resolve import resolve
from einc.physical.program import DeviceProgram
from einc_runtime.plan.regions import ExecutablePlan
from einc_runtime.plan.schema import AnyTask, Buffer, Exchange


def kind_of(task: AnyTask) -> str:
    """`kernel`, `transfer`, `aggregate`, `copy` or `fence`."""
    return str(task.__struct_config__.tag)


def tensor_name(plan: ExecutablePlan, part: Buffer | int) -> str:
    """The name of the tensor of a buffer, or of the one at a position."""
    return plan.tensors[part if isinstance(part, int) else part.tensor].name


def exchanges_of(program: DeviceProgram) -> list[Exchange]:
    """Those of all operations, then those of all outputs, in order."""
    parts = (*program.operations, *program.outputs)
    return [part.exchange for part in parts if part.exchange is not None]


def program_of(exchange: Exchange) -> Program:
    """The exchange program behind the text."""
    return resolve(parse(exchange.program, "exchange"))
