"""The preamble of one exchange of a plan, as a person needs it to write a program for it."""

from __future__ import annotations

from typing import Any

from einc.errors import ProgramError, UsageError
from einc.plan_reading.timing import read_plan_machine
from einc.predict.ranges import find_moving_range, name_rates
from einc.report.tables import describe_trust
from einc_runtime.plan.schema import Bundle, Exchange
from einc_runtime.text import format_count, suggest_name


def describe_exchange(bundle: Bundle, name: str) -> dict[str, Any]:
    """The preamble of an exchange with its atoms whole, the plan's program, and its times in ms.

    `name` is that of an operator, or `output NAME`. Raises UsageError where the plan has no exchange of this name.
    """
    exchanges: dict[str, Exchange | None] = {operation.name: operation.exchange for operation in bundle.operations}
    exchanges |= {f"output {bundle.tensors[output.tensor].name}": output.exchange for output in bundle.outputs}
    exchange = exchanges.get(name)
    if exchange is None:
        known = [exchange_name for exchange_name, known_exchange in exchanges.items() if known_exchange is not None]
        message = f"'{name}' has no exchange: all that it reads lies where it is needed"
        if name not in exchanges:
            message = f"the plan has no operator and no output '{name}'"
        raise UsageError(message, hint=suggest_name(name, known) if known else "nothing moves in this plan")
    machine = read_plan_machine(bundle)
    return {
        "name": name,
        "preamble": _write_preamble(bundle, exchange),
        "program": exchange.program,
        "completion_ms": exchange.completion_ms,
        "completion_range_ms": find_moving_range(exchange.completion_ms, machine),
        "rates": name_rates(machine),
        "naive_ms": exchange.naive_ms,
        "bound_ms": exchange.bound_ms,
        "bound_by": exchange.bound_by,
        "splits": dict(exchange.splits),
        "author": exchange.author,
    }


def format_preamble(bundle: Bundle, described: dict[str, Any]) -> str:
    """The preamble as text, with its times in comments."""
    sites = format_count(len(bundle.devices), "site")
    lines = [f"# The exchange of {described['name']} in {bundle.model}, on {sites} of {bundle.machine}"]
    times = {"the plan's program": "completion_ms", "the naive one": "naive_ms", "every one at least": "bound_ms"}
    times_known = [
        f"{label} {described[field]:.4g} ms" for label, field in times.items() if described[field] is not None
    ]
    if times_known:
        times_known[0] += describe_trust(described, "completion") if described["completion_ms"] is not None else ""
        lines.append(f"# Times: {'; '.join(times_known)}")
    return "\n".join([*lines, described["preamble"]])


def _write_preamble(bundle: Bundle, exchange: Exchange) -> str:
    from einc.exchange.language.printer import print_program
    from einc.exchange.language.resolve import read_program
    from einc.exchange.synthesis.splitting import join_pieces

    program = read_program(exchange.program, "exchange program", read_plan_machine(bundle))
    try:
        return print_program(join_pieces(program, exchange.splits))
    except (ProgramError, ValueError) as error:
        raise ProgramError(f"the plan's program and its splits contradict each other: {error}") from None
