"""What a page holds as data, put together again."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from einc.report.html.embedding import SHARED_PART_KEY

DATA = re.compile(r'<script type="([^"]*)" id="data">(.*?)</script>', re.S)
"""The element of a page that has its data; there is one."""


def read_page_data(page: str) -> dict[str, Any]:
    """The data of a page, which is compressed where it is long."""
    ((kind, text),) = DATA.findall(page)
    plain = text if kind == "application/json" else zlib.decompress(base64.b64decode(text)).decode("ascii")
    data: dict[str, Any] = json.loads(plain)
    return data


def restore_parts(value: Mapping[str, Any]) -> dict[str, Any]:
    """The document that `share_parts` was given."""

    def read_field(field: Any) -> Any:
        is_shared = isinstance(field, dict) and field.keys() == {SHARED_PART_KEY}
        return value["shared"][field[SHARED_PART_KEY]] if is_shared else field

    def read_row(row: Any) -> Any:
        if not isinstance(row, dict):
            return row
        return {name: read_field(field) for name, field in row.items()}

    return {name: [read_row(row) for row in field] if isinstance(field, list) else field
            for name, field in value["document"].items()}  # fmt: skip
