"""A program of its own: renders a chat template in a process that ends when it takes too much time or memory.

It reads one JSON object from standard input (`template`, `variables`, `seconds`, `memory`, `characters`), and writes
one: `text`, or `error`. It imports nothing of this package, and its folder is not on the path.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from typing import Any, NoReturn


def render(template: str, variables: dict[str, Any], characters: int) -> str:
    """The text of a template. Raises whatever the template raises, and ValueError for texts that are too long."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def format_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def format_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
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
    """Ends this process when it has used so many seconds of a core, and refuses it more than so many bytes."""
    try:
        import resource
    except ImportError:  # not on this system: the parent's clock is what is left
        return
    limits = {"RLIMIT_CPU": (seconds, seconds + 1), "RLIMIT_AS": (memory, memory), "RLIMIT_FSIZE": (0, 0)}
    for name, limit in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # some systems have not all of them
            resource.setrlimit(getattr(resource, name), limit)


def main() -> None:
    request = json.load(sys.stdin)
    try:
        import jinja2.ext
        import jinja2.sandbox  # noqa: F401  # before memory is limited

        limit_resources(request["seconds"], request["memory"])
        answer = {"text": render(request["template"], request["variables"], request["characters"])}
    except ImportError:
        answer = {"missing": "jinja2"}
    except (Exception, RecursionError, MemoryError) as error:
        answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
