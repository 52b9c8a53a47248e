"""Several launches as one: programs of the first kernel, then those of the second, and so on.

The kernels do not depend on each other. Each becomes a function that a program calls with its number within the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einc_runtime.kernels.triton.launches import KernelLaunch
from einc_runtime.kernels.triton.source import TRITON_IMPORTS, make_launch

_LAST_FUNCTION = re.compile(r"\n\n@triton\.jit\ndef (\w+)\(([^)]*)\):\n(?=(?:(?!\n\n@triton\.jit).)*\Z)", re.DOTALL)
"""Where the last function of a source begins: its name and its arguments."""


def place_side_by_side(name: str, calls: Sequence[KernelLaunch]) -> KernelLaunch:
    """One launch of all programs of several launches. It has the most warps and stages of any of them."""
    if len(calls) == 1:
        return calls[0]
    helpers: dict[str, None] = {}
    functions, lines, names, pointers, first = [], [], [], [], 0
    for number, call in enumerate(calls):
        _, _, code = call.source.text.partition(TRITON_IMPORTS)
        entry = _LAST_FUNCTION.search(code)
        assert entry is not None, "a source ends with its kernel"
        helpers[code[: entry.start()].strip("\n")] = None
        arguments = [argument.strip() for argument in entry[2].split(",")]
        body = code[entry.end() :].replace("tl.program_id(0)", "number")
        functions.append(f"@triton.jit\ndef part{number}(number, {', '.join(arguments)}):\n{body}")
        renamed = [f"{argument}_{number}" for argument in arguments]
        condition = "if" if not number else "elif" if number < len(calls) - 1 else "else"
        limit = f" tile < {first + call.grid}" if condition != "else" else ""
        offset = f" - {first}" if first else ""
        lines += [f"{condition}{limit}:", f"    part{number}(tile{offset}, {', '.join(renamed)})"]
        names += renamed
        pointers += list(zip(call.arguments, call.source.types, strict=True))
        first += call.grid
    titles = "\n".join(call.source.text.partition('"""\n')[0].removeprefix('"""') for call in calls)
    body = "\n    ".join(["tile = tl.program_id(0)", *lines])
    parts = "\n\n\n".join(
        [*filter(None, helpers), *functions, f"@triton.jit\ndef {name}({', '.join(names)}):\n    {body}\n"]
    )
    text = f'"""Side by side:\n\n{titles}"""\n\n{TRITON_IMPORTS}\n\n{parts}'
    warps, stages = (max(getattr(call.source, size) for call in calls) for size in ("warps", "stages"))
    return make_launch(name, text, pointers, first, warps, stages)
