"""Values of an untrusted JSON document with their places, for messages."""

from __future__ import annotations

from typing import Any

from einc.errors import ProgramError
from einc.exchange.collectives.algorithm import MAX_CHUNKS
from einc_runtime.strict_json import describe_json


class JsonValue:
    """A value of a document with its place."""

    def __init__(self, value: Any, where: str) -> None:
        self.value, self.where = value, where

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field of an object: a JsonValue for objects, else the value. Raises ProgramError for another type."""
        value = self.value.get(name, default) if isinstance(self.value, dict) else None
        wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        if wrong or (isinstance(value, int) and not -1 <= value <= MAX_CHUNKS):
            names = {int: f"a number up to {MAX_CHUNKS:,}", str: "a text", list: "a list", bool: "true or false"}
            message = f"'{name}' should be {names[kind]}" + (
                f", not {describe_json(value)}" if value is not None else ""
            )
            raise ProgramError(message, where=self.where)
        return value

    def get_rows(self, name: str, default: Any = None) -> list[JsonValue]:
        """The objects of a list."""
        rows = self.get(name, list, default)
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                message = f"'{name}' should be a list of objects, and has {describe_json(row)}"
                raise ProgramError(message, where=f"{self.where}.{name}[{position}]")
        prefix = f"{self.where}." if not self.where.endswith(": ") else self.where
        return [JsonValue(row, f"{prefix}{name}[{position}]") for position, row in enumerate(rows)]

    def get_object(self, name: str) -> JsonValue:
        value = self.value.get(name)
        if not isinstance(value, dict):
            raise self.refuse(f"'{name}' should be an object, not {describe_json(value)}")
        return JsonValue(value, f"{self.where}.{name}")

    def numbers(self, name: str) -> list[int]:
        return [JsonValue({name: entry}, self.where).get(name, int) for entry in self.get(name, list, [])]

    def has(self, name: str) -> bool:
        return name in self.value

    def refuse(self, message: str, hint: str | None = None) -> ProgramError:
        return ProgramError(message, where=self.where, hint=hint)
