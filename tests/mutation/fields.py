"""Changes of one field of one record: every value of a plan in several ways that fit its type.

A change is named by the place and the way, and the names of all changes of a plan are listed in a fixed order. So a
name and the plan are all that is needed to make a mutant again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Tree = Any
"""The payload of a plan as msgpack reads it: maps, lists and scalars."""
Path = tuple[str | int, ...]
Edit = Callable[[Tree], None]

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("f16", "bf16", "f32", "f64", "i32", "i64", "bool", "i8", "i4x2"),
    "precision": ("f16", "f32", "f64", "i32"),
    "kind": ("input", "weight", "state", "value", "kernel", "transfer", "aggregate", "copy", "fence"),
    "role": ("input", "weight", "state", "result", "scratch"),
    "aggregation": ("sum", "max", "min", "prod", "logsumexp", "topk"),
    "aggregations": ("sum", "max", "min", "prod", "logsumexp", "topk"),
    "kernel": (
        "contract",
        "map",
        "softmax",
        "attention",
        "index",
        "topk",
        "rope",
        "reshape",
        "append",
        "dequantize",
        "quantized_product",
        "rounded_product",
        "no such kernel",
    ),
    "author": ("compiler", "proposer", "user"),
    "input_placement": ("replicated", "once"),
}
_TEXTS = ("program", "machine_file")
_BIG = (1 << 63) - 1


def look_up(tree: Tree, path: Path) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _put(path: Path, value: Any) -> Edit:
    def edit(tree: Tree) -> None:
        look_up(tree, path[:-1])[path[-1]] = value

    return edit


def list_field_edits(tree: Tree) -> Iterator[tuple[str, str, Edit]]:
    """Of every change: the kind of field, the name, and the change itself."""
    for path, value in _walk(tree, ()):
        field = ".".join(step for step in path if isinstance(step, str))
        place = ".".join(map(str, path))
        for way, other in _ways(tree, path, value):
            yield field, f"{place}:{way}", other if callable(other) else _put(path, other)


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from _walk(part, (*path, key))


def _ways(tree: Tree, path: Path, value: Any) -> Iterator[tuple[str, Any]]:
    if value is None:
        yield from (("one", 1), ("a half", 0.5), ("text", "text"))
    elif isinstance(value, bool):
        yield from (("not", not value), ("none", None))
    elif isinstance(value, int):
        yield from _ways_of_integer(value)
    elif isinstance(value, float):
        yield from (("more", value * (1 + 1e-9) + 1e-12), ("twice", value * 2), ("zero", 0.0), ("one", 1.0))
        yield from (("negative", -value - 1), ("infinite", float("inf")), ("nan", float("nan")), ("none", None))
    elif isinstance(value, str):
        yield from _ways_of_text(path, value)
    elif isinstance(value, bytes):
        yield from (
            ("longer", value + b"\0"),
            ("shorter", value[:-1]),
            ("empty", b""),
            ("none", None),
            ("text", "text"),
        )
    elif isinstance(value, list):
        yield from _ways_of_list(value)
    else:
        yield from _ways_of_map(path, value)
    yield from _others(tree, path, value)


def _ways_of_integer(value: int) -> Iterator[tuple[str, Any]]:
    yield from (("one more", value + 1), ("one less", value - 1))
    for name, bound in (("zero", 0), ("largest", _BIG), ("twice", min(2 * value, _BIG)), ("thousands", value + 4096)):
        if bound != value:
            yield name, bound
    yield from (("as float", float(value)), ("none", None))


def _ways_of_text(path: Path, value: str) -> Iterator[tuple[str, Any]]:
    field = next(step for step in reversed(path) if isinstance(step, str))
    if field in _TEXTS:
        yield from _ways_of_lines(value)
        return
    yield from ((f"to {other}", other) for other in _CHOICES.get(field, ()) if other != value)
    yield from (("longer", value + "x"), ("shorter", value[:-1]), ("empty", ""), ("none", None), ("number", 1))
    numbers = list(re.finditer(r"\d+", value))
    for found in numbers[:4]:
        start, end = found.span()
        yield f"number at {start} more", value[:start] + str(int(found[0][:9]) + 1) + value[end:]


def _ways_of_lines(value: str) -> Iterator[tuple[str, Any]]:
    """A text of many lines: each line left out, doubled, or exchanged with the next; each number changed."""
    lines = value.splitlines(keepends=True)
    for k, line in enumerate(lines):
        yield f"line {k} left out", "".join(lines[:k] + lines[k + 1 :])
        yield f"line {k} doubled", "".join([*lines[: k + 1], line, *lines[k + 1 :]])
        if k + 1 < len(lines) and lines[k + 1] != line:
            yield f"line {k} after the next", "".join([*lines[:k], lines[k + 1], line, *lines[k + 2 :]])
    for found in re.finditer(r"\d+", value):
        start, end = found.span()
        yield f"number at {start} more", value[:start] + str(int(found[0][:9]) + 1) + value[end:]
    yield from (("empty", ""), ("half", value[: len(value) // 2]), ("none", None))


def _ways_of_list(value: list[Any]) -> Iterator[tuple[str, Any]]:
    if value:
        yield from (("without first", value[1:]), ("without last", value[:-1]), ("empty", []))
        yield from (("first doubled", [value[0], *value]), ("last doubled", [*value, value[-1]]), ("none", None))
    if len(value) > 1:
        yield from (("reversed", value[::-1]), ("rotated", [*value[1:], value[0]]))
        yield "first two exchanged", [value[1], value[0], *value[2:]]
    if len(value) > 2:
        middle = len(value) // 2
        yield "without the middle", value[:middle] + value[middle + 1 :]
    if not value:
        yield from (("with a zero", [0]), ("with a text", ["x"]))


def _ways_of_map(path: Path, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in value:
        yield f"without {key}", {name: part for name, part in value.items() if name != key}
    if path[-1] in ("attributes", "kernel_attributes", "splits"):
        yield "with one more", dict(sorted({**value, "zzz": 2}.items()))
        for key, part in value.items():
            yield (
                f"{key} renamed",
                dict(sorted({**{k: v for k, v in value.items() if k != key}, key + "s": part}.items())),
            )
    else:
        yield "with one more", {**value, "zzz": 1}


def _others(tree: Tree, path: Path, value: Any) -> Iterator[tuple[str, Any]]:
    """What stands at the same place of the next record, of the record after that, and of the first and last ones."""
    for depth in range(len(path) - 1, -1, -1):
        step = path[depth]
        if not isinstance(step, int):
            continue
        siblings = look_up(tree, path[:depth])
        seen = [value]
        for other in ((step + 1) % len(siblings), (step + 2) % len(siblings), 0, len(siblings) - 1):
            try:
                found = look_up(siblings, (other, *path[depth + 1 :]))
            except (LookupError, TypeError):
                continue
            if found not in seen:
                seen.append(found)
                yield f"as in {'.'.join(map(str, path[:depth]))}.{other}", found
