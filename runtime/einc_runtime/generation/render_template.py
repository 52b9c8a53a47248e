"""A program of its own: renders a chat template in a process that ends when it takes too much time or memory.

Every line of standard input is a JSON object (`template`, `variables`, `seconds`, `memory`, `characters`), and is
answered by a line with one: `text`, or `error`. It imports nothing of this package, and its folder is not on the path.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import sys
import time
from typing import Any, NoReturn


def render(template: str, variables: dict[str, Any], characters: int) -> str:
    """The text of a template. Raises whatever the template raises, and ValueError for texts that are too long."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}` marks what a model has said, for those who train it: its text is that of its body."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def format_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def format_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        form: dict[str, Any] = {"ensure_ascii": ensure_ascii, "indent": indent, "sort_keys": sort_keys}
        return json.dumps(value, separators=None if separators is None else tuple(separators), **form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = format_json
    environment.globals.update(raise_exception=refuse, strftime_now=format_now)
    parts, size = [], 0
    for part in environment.from_string(template).generate(**variables):
        size += len(part)
        if size > characters:
            raise ValueError(f"its text has more than {characters:,} characters")
        parts.append(part)
    return "".join(parts)


def limit_resources(seconds: int, memory: int) -> None:
    """Ends this process when it has used so many more seconds of a core, and refuses it more than so many bytes."""
    try:
        import resource
    except ImportError:  # not on this system: the parent's clock is what is left
        return
    used = math.ceil(time.process_time())
    limits = {"RLIMIT_CPU": used + seconds, "RLIMIT_AS": memory, "RLIMIT_FSIZE": 0}
    for name, limit in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # some systems have not all of them
            number = getattr(resource, name)
            resource.setrlimit(number, (limit, resource.getrlimit(number)[1]))


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The text of a request's template, or why there is none."""
    try:
        import jinja2.ext
        import jinja2.sandbox  # noqa: F401  # before memory is limited

        limit_resources(request["seconds"], request["memory"])
        return {"text": render(request["template"], request["variables"], request["characters"])}
    except ImportError:
        return {"missing": "jinja2"}
    except (Exception, RecursionError, MemoryError) as error:
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def main() -> None:
    """Answers requests, a line each. Whatever else writes to standard output is lost."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
