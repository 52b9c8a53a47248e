"""What is wrong with a request, in the form that clients of OpenAI's API expect."""

from __future__ import annotations

from typing import Any

from einc_runtime.errors import KernelFault, MissingFault, ReportedError
from einc_runtime.generation.engine import BusyFault, ClosedFault

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
