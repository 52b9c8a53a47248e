"""Reads JSON of unknown origin strictly, with a ValueError for every failure, and describes its values in messages."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from typing import Any

from einc_runtime.text import escape_text, format_count

Document = dict[str, Any]
"""An object of JSON."""


def parse_json(text: str | bytes, *, finite: bool = True) -> object:
    """The value in a JSON text, in UTF-8 if it is bytes.

    Raises ValueError, whose message says what is wrong. It also refuses what `json` accepts: `NaN`, `Infinity`, numbers
    too large for a float, and objects that have a name twice, since two readers could see different values there.
    Where numbers need not be `finite`, `NaN` and `Infinity` are the floats that Python reads and writes so.
    """
    try:
        return json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text,
            object_pairs_hook=_distinct_object,
            parse_constant=_refuse_constant if finite else float,
            parse_float=_finite_float,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def describe_json(value: object, limit: int = 80) -> str:
    """A value of JSON for a message: short and printable."""
    if isinstance(value, dict):
        return f"an object of {format_count(len(value), 'field')}"
    if isinstance(value, list):
        return f"a list of {format_count(len(value), 'item')}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "an integer of more than 30 digits"  # Python may refuse to format it
    return escape_text(json.dumps(value) if isinstance(value, bool | str) or value is None else repr(value), limit)


def _distinct_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name '{escape_text(twice, 40)}' is given twice in one object")
    return table


def _refuse_constant(word: str) -> object:
    raise ValueError(f"{word} is not a number of JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {escape_text(digits, 40)} is too large")
    return value


def _integer(digits: str) -> int:
    limit = sys.get_int_max_str_digits()
    if 0 < limit < len(digits):
        raise ValueError(f"a number has more than {limit} digits")
    return int(digits)
