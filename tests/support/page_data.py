"""What a page holds as data, put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einc.report.html.embedding import SHARED_PART_KEY


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
