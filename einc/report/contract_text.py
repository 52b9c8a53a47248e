"""Contracts of plans as text (`comm_bytes <= 300MiB`), by the grammar `grammars/contract.lark`."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from einc.data import find_folder
from einc.errors import UsageError
from einc.logical.pins import Pin, parse_pin
from einc_runtime.text import escape_text, suggest_name

MAX_CONTRACTS = 1000
"""Contracts of one command."""

MAX_CONTRACT = 1000
"""Characters of one contract."""

Kind = Literal["time", "bytes", "count", "ratio"]

RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
)

QUANTITIES: Mapping[str, tuple[Kind, str]] = MappingProxyType(
    {
        "predicted_ms": ("time", "the predicted time of the whole plan"),
        "compute_ms": ("time", "the part of the critical path that kernels take"),
        "combine_ms": ("time", "the part of the critical path that combining and copying take"),
        "transfer_ms": ("time", "the part of the critical path that transfers take"),
        "exchange_ms": ("time", "the time of all exchanges, one after the other"),
        "naive_ms": ("time", "the same with naive exchanges"),
        "bound_ms": ("time", "the time that no exchange programs can go below, one after the other"),
        "bound_ratio": ("ratio", "exchange_ms over bound_ms; 1 where nothing moves"),
        "speedup": ("ratio", "the predicted time on one site over that of the plan, if the plan was compared with it"),
        "comm_bytes": ("bytes", "the bytes that transfers move between sites"),
        "transfers": ("count", "the number of transfers"),
        "memory": ("bytes", "the memory of the fullest site"),
        "weights": ("bytes", "the weights on the site that has most of them"),
        "replicated_weights": ("bytes", "the weights of a site that others hold too, on the site that has most"),
        "sites": ("count", "the number of sites"),
        "idle_sites": ("count", "the sites that no operator uses"),
        "operators": ("count", "the number of operators, after fusion"),
        "cost": ("count", "the paper's cost in elements"),
        "repartition": ("count", "its part for repartitions"),
        "join": ("count", "its part for joins"),
        "aggregation": ("count", "its part for aggregations"),
    }
)
"""What a contract may speak of, in the order of the help: what it is counted in, and what it means."""

BASE_UNITS: Mapping[Kind, str] = MappingProxyType({"time": "ms", "bytes": "B", "count": "", "ratio": ""})
"""What a figure of this kind is counted in; a number without a unit is in it."""

_LIMIT_UNITS: Mapping[Kind, Mapping[str, Decimal]] = MappingProxyType(
    {
        "time": {"ns": Decimal("1e-6"), "us": Decimal("1e-3"), "µs": Decimal("1e-3"), "ms": Decimal(1),
                 "s": Decimal(1000)},
        "bytes": {"B": Decimal(1)}
        | {f"{p}B": Decimal(1000) ** (k + 1) for k, p in enumerate("KMGT")}
        | {f"{p}iB": Decimal(1024) ** (k + 1) for k, p in enumerate("KMGT")},
        "count": {},
        "ratio": {},
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Contract:
    """What a plan shall keep to. `where` says where it was given, for messages."""

    text: str
    comparison: str
    where: str | None


@dataclass(frozen=True, slots=True)
class FigureContract(Contract):
    """`quantity comparison limit`; the limit is in the quantity's base unit."""

    quantity: str
    limit: float


@dataclass(frozen=True, slots=True)
class CutContract(Contract):
    """`cut(pattern) comparison cut`, where the comparison is `==` or `!=`."""

    pin: Pin


def parse_contract(text: str, where: str | None = None) -> Contract:
    """The contract of a text. Raises UsageError, with a hint, for any other text and for what no plan has."""
    text = " ".join(text[: MAX_CONTRACT + 1].split())
    if len(text) > MAX_CONTRACT:
        raise UsageError(f"a contract of more than {MAX_CONTRACT} characters", where=where)
    try:
        tree: Tree[Token] = _load_lark().parse(text)
    except UnexpectedInput as error:
        raise _describe_syntax_error(text, error, where) from None
    words = [str(child) for child in tree.children]
    if tree.data == "cut":
        _, pattern, comparison, cut = words
        if comparison not in ("==", "!="):
            raise UsageError(f"'{escape_text(text)}': cuts are compared with == and !=", where=where)
        return CutContract(text, comparison, where, parse_pin(f"{pattern}={cut}", where))
    name, comparison, number, *unit = words
    if name not in QUANTITIES:
        raise UsageError(
            f"'{escape_text(text)}': a plan has no quantity '{escape_text(name, 60)}'",
            where=where,
            hint=suggest_name(name, [*QUANTITIES, "cut"]),
        )
    return FigureContract(text, comparison, where, name, _read_limit(text, name, number, unit, where))


def parse_contract_file(text: str, file: str) -> tuple[Contract, ...]:
    """The contracts of a file: one a line; empty lines, and what follows a `#`, are left out. Raises UsageError."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return tuple(parse_contract(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line)


def _read_limit(text: str, name: str, number: str, unit: list[str], where: str | None) -> float:
    kind = QUANTITIES[name][0]
    units = _LIMIT_UNITS[kind]
    factor = units.get(unit[0]) if unit else Decimal(1)
    if factor is None:
        known = f"one of {', '.join(units)}" if units else "no unit"
        raise UsageError(f"'{escape_text(text)}': {name} takes {known}, not '{escape_text(unit[0], 20)}'", where=where)
    limit = float(Decimal(number) * factor)
    if not math.isfinite(limit):
        raise UsageError(f"'{escape_text(text)}': the number is too large", where=where)
    return limit


@functools.cache
def _load_lark() -> Lark:
    grammar = (find_folder("grammars") / "contract.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", maybe_placeholders=False)


def _describe_syntax_error(text: str, error: UnexpectedInput, where: str | None) -> UsageError:
    position = error.pos_in_stream
    remaining = text[position:] if position is not None and 0 <= position < len(text) else ""
    position_text = f"at '{escape_text(remaining, 30)}'" if remaining else "it ends too early"
    hint = "write QUANTITY <= NUMBER UNIT, such as 'comm_bytes <= 300MiB', or 'cut(layer.*.up) == d_ff/8'"
    return UsageError(f"'{escape_text(text)}' is no contract: {position_text}", where=where, hint=hint)
