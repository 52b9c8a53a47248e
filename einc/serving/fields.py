"""The fields of a request's JSON object, each read with its type: what is wrong is one ApiError."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from einc_runtime.errors import KernelFault, MissingFault, ReportedError
from einc_runtime.generation.engine import BusyFault, ClosedFault
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
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong_field(name, "expected a string", value)
        return value

    def flag(self, name: str) -> bool:
        """True or false, which is the default."""
        value = self._fields.get(name, False)
        if not isinstance(value, bool):
            raise wrong_field(name, "expected true or false", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise wrong_field(name, f"expected an integer from {low:,} to {high:,}", value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise wrong_field(name, f"expected a number from {low:g} to {high:g}", value)
        return float(value)

    def strings(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of at most `most`, each of 1 to `longest` characters."""
        value = self._fields.get(name, [])
        texts = [value] if isinstance(value, str) else value
        sound = isinstance(texts, list) and len(texts) <= most and all(isinstance(text, str) for text in texts)
        if not sound or not all(0 < len(text) <= longest for text in texts):
            raise wrong_field(name, f"expected up to {most} strings of 1 to {longest} characters", value)
        return tuple(texts)

    def require(self, supported: Mapping[str, Sequence[object]]) -> None:
        """Raises ApiError for a field with a value that changes the answer in a way that there is not."""
        for name, values in supported.items():
            given_value = self._fields.get(name)
            if given_value is not None and not any(
                given_value == value and type(given_value) is type(value) for value in values
            ):
                only = " or ".join(describe_json(value) for value in values)
                raise wrong_field(name, f"only {only} is supported" if only else "this is not supported", given_value)

    def refuse_others(self, known: Collection[str]) -> None:
        """Raises ApiError for a field that nobody knows: it may change what is meant."""
        for name in self._fields:
            if name not in known:
                raise ApiError(400, f"there is no field '{escape_text(name, 60)}'", param=escape_text(name, 60))


def wrong_field(name: str, expected: str, value: object) -> ApiError:
    return ApiError(400, f"{name}: {expected}, found {describe_json(value)}", param=name)


INVALID = "invalid_request_error"


class ApiError(Exception):
    """An answer with an HTTP status of 400 or more. `param` is the field of the request that is wrong."""

    def __init__(
        self, status: int, message: str, *, kind: str = INVALID, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param

    def document(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def make_api_error(error: ReportedError) -> ApiError:
    """The answer for an error of the runtime: the request's fault, unless its class says otherwise."""
    message = error.message if error.hint is None else f"{error.message}; {error.hint}"
    match error:
        case BusyFault():
            return ApiError(429, message, kind="rate_limit_error", code="queue_full")
        case ClosedFault():
            return ApiError(503, message, kind="server_error", code="shutting_down")
        case KernelFault() | MissingFault():
            return ApiError(500, message, kind="server_error", code=error.code)
    return ApiError(400, message)
