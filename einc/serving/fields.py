"""The fields of a request's JSON object, each read with its type: what is wrong is one ApiError."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from einc.serving.errors import ApiError
from einc_runtime.strict_json import describe_json, parse_json
from einc_runtime.text import escape_text


class RequestFields:
    """A field that is null counts as one that is not there."""

    def __init__(self, body: bytes) -> None:
        try:
            document = parse_json(body)
        except ValueError as error:
            raise ApiError(400, f"the body is no valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise ApiError(400, f"the body: expected an object in braces, found {describe_json(document)}")
        self._fields: dict[str, Any] = {name: value for name, value in document.items() if value is not None}

    def value(self, name: str) -> Any:
        """Whatever is there; None where nothing is."""
        return self._fields.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        found = self._fields.get(name)
        if found is not None and not isinstance(found, str):
            raise wrong_field(name, "expected a string", found)
        return found

    def flag(self, name: str) -> bool:
        """True or false, which is the default."""
        found = self._fields.get(name, False)
        if not isinstance(found, bool):
            raise wrong_field(name, "expected true or false", found)
        return found

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer from `low` to `high`."""
        found = self._fields.get(name)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not low <= found <= high:
            raise wrong_field(name, f"expected an integer from {low:,} to {high:,}", found)
        return found

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`."""
        found = self._fields.get(name)
        if found is None:
            return None
        if not isinstance(found, int | float) or isinstance(found, bool) or not low <= found <= high:
            raise wrong_field(name, f"expected a number from {low:g} to {high:g}", found)
        return float(found)

    def strings(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of at most `most`, each of 1 to `longest` characters."""
        found = self._fields.get(name, [])
        texts = [found] if isinstance(found, str) else found
        sound = isinstance(texts, list) and len(texts) <= most and all(isinstance(one, str) for one in texts)
        if not sound or not all(0 < len(one) <= longest for one in texts):
            raise wrong_field(name, f"expected up to {most} strings of 1 to {longest} characters", found)
        return tuple(texts)

    def require(self, supported: Mapping[str, Sequence[object]]) -> None:
        """Raises ApiError for a field with a value that changes the answer in a way that there is not."""
        for name, values in supported.items():
            found = self._fields.get(name)
            if found is not None and not any(found == value and type(found) is type(value) for value in values):
                only = " or ".join(describe_json(value) for value in values)
                raise wrong_field(name, f"only {only} is supported" if only else "this is not supported", found)

    def refuse_others(self, known: Collection[str]) -> None:
        """Raises ApiError for a field that nobody knows: it may change what is meant."""
        for name in self._fields:
            if name not in known:
                raise ApiError(400, f"there is no field '{escape_text(name, 60)}'", param=escape_text(name, 60))


def wrong_field(name: str, expected: str, found: object) -> ApiError:
    """The error for the value of a field."""
    return ApiError(400, f"{name}: {expected}, found {describe_json(found)}", param=name)
