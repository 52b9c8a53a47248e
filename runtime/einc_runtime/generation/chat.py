"""Chat templates: programs that come with a model and write a conversation as the model expects it.

They are rendered by jinja2's immutable sandbox, which gives them no attributes of Python's objects, in a process with
little time and memory (`render_template.py`), which takes one request after the other.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from einc_runtime.errors import ArrayFault, MissingFault
from einc_runtime.generation.tokenizer import MAX_PROMPT
from einc_runtime.installing import suggest_extra

MAX_SECONDS = 5
"""Seconds of a core that a template may take; published ones take milliseconds."""
MAX_WAIT = 60
"""Seconds after which it is ended on any clock: on a system without limits, or a very busy one."""
MAX_MEMORY = 512 << 20
"""Bytes of the process that renders it."""

Message = Mapping[str, Any]
"""A `role` and its `content`, and what else a template knows of messages, such as `tool_calls`."""

UNSET: Mapping[str, Any] = {"tools": None, "documents": None}
"""What a template sees where nothing is said of it, as in transformers: a variable that is not defined is not None."""


class ChatRenderer:
    """Renders templates in one process, which is started when it is needed. Threads may share it; they wait for it.

    Use it in a `with` statement: at its end, so does the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ChatRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._end()

    def render(self, template: str, messages: Sequence[Message], variables: Mapping[str, Any], where: str) -> str:
        """The text of a conversation, up to where the model answers; `variables` are those of its folder
        and of a request.

        `where` names the template's file. Raises ArrayFault for what the template raises, and if it takes too much.
        """
        request = {
            "template": template,
            "variables": {**UNSET, "add_generation_prompt": True, **variables, "messages": list(map(dict, messages))},
            "seconds": MAX_SECONDS,
            "memory": MAX_MEMORY,
            "characters": MAX_PROMPT,
        }
        with self._lock:
            answer = self._ask(json.dumps(request).encode() + b"\n", where)
        if "missing" in answer:
            raise MissingFault("chat templates need the package jinja2", hint=suggest_extra("generate"))
        if "error" in answer:
            raise ArrayFault(f"the chat template fails: {answer['error']}", where=where)
        return str(answer["text"])

    def _ask(self, line: bytes, where: str) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(MAX_WAIT, process.kill)
        late.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
        except (OSError, ValueError):  # it was ended
            self._end()
            message = f"the chat template takes more than {MAX_SECONDS} seconds or {MAX_MEMORY >> 20} MiB"
            raise ArrayFault(message, where=where) from None
        except BaseException:  # an interrupt: its answer would be taken for that of the next request
            self._end()
            raise
        finally:
            late.cancel()
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not written
                    if stream is not None:
                        stream.close()


def _start() -> subprocess.Popen[bytes]:
    """The process, which interrupts from the terminal do not reach: a server that drains still needs it."""
    program = Path(__file__).with_name("render_template.py")
    return subprocess.Popen(
        [sys.executable, "-P", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
