"""Chat templates: programs that come with a model and write a conversation as the model expects it.

They are rendered by jinja2's immutable sandbox, which gives them no attributes of Python's objects, in a process with
little time and memory (`render_template.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from einc_runtime.errors import ArrayFault, MissingFault
from einc_runtime.generation.tokenizer import INSTALL, MAX_PROMPT

MAX_SECONDS = 5
"""Seconds of a core that a template may take; published ones take milliseconds."""
MAX_WAIT = 60
"""Seconds after which it is ended on any clock: on a system without limits, or a very busy one."""
MAX_MEMORY = 512 << 20
"""Bytes of the process that renders it."""

Message = Mapping[str, str]


def render_chat(template: str, messages: Sequence[Message], variables: Mapping[str, Any], where: str) -> str:
    """The text of a conversation, up to where the model answers; a message has a `role` and its `content`.

    `where` names the template's file. Raises ArrayFault for what the template raises, and if it takes too much.
    """
    request = {
        "template": template,
        "variables": {**variables, "messages": [dict(message) for message in messages], "add_generation_prompt": True},
        "seconds": MAX_SECONDS,
        "memory": MAX_MEMORY,
        "characters": MAX_PROMPT,
    }
    program = Path(__file__).with_name("render_template.py")
    try:
        ended = subprocess.run(
            [sys.executable, "-P", str(program)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=MAX_WAIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ArrayFault(f"the chat template takes more than {MAX_WAIT} seconds", where=where) from None
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        message = f"the chat template takes more than {MAX_SECONDS} seconds or {MAX_MEMORY >> 20} MiB"
        raise ArrayFault(message, where=where) from None
    if "missing" in answer:
        raise MissingFault("chat templates need the package jinja2", hint=INSTALL)
    if "error" in answer:
        raise ArrayFault(f"the chat template fails: {answer['error']}", where=where)
    return str(answer["text"])
