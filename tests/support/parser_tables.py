"""Writes the tables of `einc/frontend/parser.py`, in the same order whatever order sets have."""

from __future__ import annotations

import json
from typing import Any

from lark.grammar import Rule
from lark.lexer import TerminalDef

from einc.frontend.parser import make_parser, stamp


def write_tables(grammar: str) -> str:
    """The text of `grammars/ein.json`."""
    data, memo = make_parser(grammar).memo_serialize([TerminalDef, Rule])
    for option in ("postlex", "transformer"):
        del data["options"][option]
    numbers = {old: new for new, old in enumerate(sorted(memo, key=lambda old: json.dumps(memo[old], sort_keys=True)))}

    def renumber(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: numbers[entry] if key == "@" else renumber(entry) for key, entry in value.items()}
        return [renumber(entry) for entry in value] if isinstance(value, list | tuple) else value

    data = renumber(data)
    data["parser"]["parser"] = _sort_states(**data["parser"]["parser"])
    tables = {"stamp": stamp(grammar), "data": data, "memo": {numbers[old]: entry for old, entry in memo.items()}}
    return json.dumps(tables, separators=(",", ":"), sort_keys=True) + "\n"


def _sort_states(
    tokens: dict[int, str], states: dict[int, dict[int, Any]], start_states: dict[str, int], end_states: dict[str, int]
) -> dict[str, Any]:
    """States numbered as they are reached from the start, and tokens by their names."""
    names = sorted(tokens.values())
    order = list(start_states.values())
    for state in order:  # which grows
        for token in sorted(states[state], key=lambda token: tokens[token]):
            shifts, target = states[state][token]
            if not shifts and target not in order:
                order.append(target)
    number = {state: position for position, state in enumerate(order)}
    return {
        "tokens": dict(enumerate(names)),
        "states": {
            number[state]: {
                names.index(tokens[token]): [kind, target if kind else number[target]]
                for token, (kind, target) in actions.items()
            }
            for state, actions in states.items()
        },
        "start_states": {name: number[state] for name, state in start_states.items()},
        "end_states": {name: number[state] for name, state in end_states.items()},
    }
