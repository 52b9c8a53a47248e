"""JSON inside of a page: safe wherever a script may stand, with equal parts written once, compressed where it is long.

Plans repeat themselves: the layers of a model have the same cuts and the same exchange programs.
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections.abc import Mapping
from typing import Any

MIN_SHARED = 40
"""Characters of JSON that a part must have so that it is shared."""

SHARED_PART_KEY = "$"
"""The only name of an object that stands for a shared part; its value is the part's position."""

MAX_PLAIN_TEXT = 1_000_000
"""Longer texts are compressed, to about an eighth. Browsers read them since 2023, and shorter ones at any time."""

_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def write_script_json(value: object) -> str:
    """JSON in ASCII that can stand in a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, escape in _UNSAFE.items():
        text = text.replace(character, escape)
    return text


def write_script_element(name: str, value: object) -> str:
    """The element with that id whose content a script reads with `readElement`: JSON, or if it is long, zlib's
    compressed JSON in base64."""
    text, kind = write_script_json(value), "application/json"
    if len(text) > MAX_PLAIN_TEXT:
        text, kind = base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii"), "application/zlib"
    return f'<script type="{kind}" id="{name}">{text}</script>'


def write_runs(columns: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The columns, with those that are shorter so as `{"runs": [value, count, value, count, ...]}`."""
    return None if columns is None else {name: _write_runs(column) for name, column in columns.items()}


def _write_runs(column: Any) -> Any:
    if not isinstance(column, list):
        return column
    runs = [part for value, group in itertools.groupby(column) for part in (value, len(list(group)))]
    return {"runs": runs} if len(runs) < len(column) else column


def share_parts(document: Mapping[str, Any]) -> dict[str, Any]:
    """`{"document", "shared"}`: the same document, in whose rows each field that is long and stands there before refers
    to a list of such fields.

    A row is an object in a list that is a field of the document, as each of its operators.
    """
    shared: list[Any] = []
    places: dict[str, int] = {}
    known: dict[int, Any] = {}  # by the identity of fields, which equal layers have in common

    def share(field: Any) -> Any:
        if not isinstance(field, list | dict | str):
            return field
        if id(field) not in known:
            known[id(field)] = refer(field)
        return known[id(field)]

    def refer(field: Any) -> Any:
        text = json.dumps(field)
        if len(text) < MIN_SHARED:
            return field
        if text not in places:
            places[text] = len(shared)
            shared.append(field)
        return {SHARED_PART_KEY: places[text]}

    def share_row(row: Any) -> Any:
        return {name: share(field) for name, field in row.items()} if isinstance(row, dict) else row

    written = {name: [share_row(row) for row in field] if isinstance(field, list) else field
               for name, field in document.items()}  # fmt: skip
    return {"document": written, "shared": shared}
