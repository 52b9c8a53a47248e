"""Random mutations: of trees as MessagePack and JSON have them, of texts token by token, and of bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

INTEGERS = (-(1 << 63), -(1 << 31), -2, -1, 0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 100, 255, 256, 4096, 65535,
            1 << 20, 1 << 31, 1 << 32, (1 << 50) + 1, 1 << 62, (1 << 63) - 1)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.5, 1e-300, 1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "x" * 300, "\x1b[31m", "\0", "\u202e", "a\nb", "é", "-", "0", "*", "i j -> i", "sum", "host")
ANYTHING = (None, True, False, 1, -1, 1.5, "a", [], {}, [0], {"a": 1}, [[0, 1], [2, 3]])
MAX_DEPTH = 40


def mutate_tree(tree: Any, rng: random.Random, donors: Sequence[Any]) -> None:
    """Changes one to four places of a list or map; parts of `donors`, trees of the same kind, may take their place."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        container, key = _pick(tree, rng)
        if container is None:
            return
        _change(container, key, rng, donors)


def _pick(tree: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random place below the root, deeper ones as likely as the way down is."""
    container, key, child = None, None, tree
    for _ in range(MAX_DEPTH):
        if not isinstance(child, list | dict) or not child or (container is not None and rng.random() < 0.08):
            break
        container = child
        key = rng.randrange(len(child)) if isinstance(child, list) else rng.choice(list(child))
        child = container[key]
    return container, key


def _change(container: Any, key: Any, rng: random.Random, donors: Sequence[Any]) -> None:
    value, kind = container[key], rng.random()
    if kind < 0.12:
        _change_siblings(container, key, rng)
    elif kind < 0.18:
        container[key] = copy_tree(rng.choice(ANYTHING))
    elif kind < 0.30 and donors:
        donor, path = _pick(rng.choice(donors), rng)
        if isinstance(container, dict) and isinstance(donor, dict) and key in donor:
            path = key  # the field of the same name
        container[key] = copy_tree(donor[path]) if donor is not None else None
    else:
        container[key] = _change_value(value, rng)


def _change_siblings(container: Any, key: Any, rng: random.Random) -> None:
    """Leaves out, repeats, exchanges or renames what is in a list or map."""
    if isinstance(container, list):
        match rng.randrange(6):
            case 0:
                del container[key]
            case 1:
                container.insert(rng.randrange(len(container) + 1), copy_tree(container[key]))
            case 2:
                neighbour = rng.randrange(len(container))
                container[key], container[neighbour] = container[neighbour], container[key]
            case 3:
                container.reverse()
            case 4:
                del container[key:]
            case _:
                container.extend(map(copy_tree, container[: rng.randrange(1, 4)]))
        return
    match rng.randrange(4):
        case 0:
            del container[key]
        case 1:
            container[rng.choice(TEXTS)] = container.pop(key)
        case 2:
            container[key] = container.pop(key)  # another order
        case _:
            container[rng.choice(TEXTS)] = copy_tree(container[key])


def _change_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (value + 1, value - 1, -value, value * 2, value // 2, value + rng.randrange(16), value ^ 1)
        return rng.choice(near) if rng.random() < 0.7 else rng.choice(INTEGERS)
    if isinstance(value, float):
        return rng.choice((value * 2, -value, value + 1.0)) if rng.random() < 0.5 else rng.choice(FLOATS)
    if isinstance(value, str):
        return mutate_text(value, rng, ()) if value and rng.random() < 0.6 else rng.choice(TEXTS)
    if isinstance(value, list) and value:
        return rng.choice((value[::-1], value[1:], value[:-1], value + copy_tree(value), value[:1], [value]))
    return copy_tree(rng.choice(ANYTHING))


def copy_tree(tree: Any) -> Any:
    """A copy that shares no list or map with the tree, so that a later change has one place."""
    if isinstance(tree, list):
        return [copy_tree(part) for part in tree]
    if isinstance(tree, dict):
        return {name: copy_tree(part) for name, part in tree.items()}
    return tree


TOKENS = re.compile(r"\w+|\s+|.", re.DOTALL)


def mutate_text(text: str, rng: random.Random, donors: Sequence[str]) -> str:
    """Leaves out, repeats, exchanges or replaces a few tokens; pieces of `donors` may be put in."""
    tokens = TOKENS.findall(text) or [""]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 5))):
        at = rng.randrange(len(tokens))
        match rng.randrange(9):
            case 0:
                tokens[at : at + rng.choice((1, 1, 2, 8))] = [""]
            case 1:
                tokens.insert(at, tokens[rng.randrange(len(tokens))])
            case 2:
                neighbour = rng.randrange(len(tokens))
                tokens[at], tokens[neighbour] = tokens[neighbour], tokens[at]
            case 3 | 4:
                tokens[at] = tokens[rng.randrange(len(tokens))]
            case 5:
                tokens[at] = str(rng.choice(INTEGERS))
            case 6:
                tokens[at] = rng.choice("()[]{}<>,;:=+-*/@|.#\"'\n \t\0\x7f\u202eé")
            case 7 if donors:
                pieces = TOKENS.findall(rng.choice(donors)) or [""]
                start = rng.randrange(len(pieces))
                tokens[at:at] = pieces[start : start + rng.choice((1, 4, 16, 64))]
            case _:
                tokens[at:at] = tokens[at : at + 4] * rng.choice((1, 2, 20))
    return "".join(tokens)


def mutate_bytes(data: bytes, rng: random.Random, donors: Sequence[bytes]) -> bytes:
    """Changes, leaves out, repeats or puts in a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                changed[at : at + 1] = bytes([changed[at] ^ 1 << rng.randrange(8)]) if at < len(changed) else b"\0"
            case 2:
                del changed[at : at + rng.choice((1, 2, 4, 64))]
            case 3:
                changed[at:at] = rng.choice((b"\0", b"\xff" * 8, b"9" * 20, bytes(changed[at : at + 16])))
            case 4:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice(INTEGERS) & (1 << 8 * width) - 1
                changed[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
            case 5 if donors:
                donor = rng.choice(donors)
                start = rng.randrange(len(donor) + 1)
                changed[at : at + rng.choice((0, 8))] = donor[start : start + rng.choice((1, 8, 64))]
            case _:
                del changed[at:]
    return bytes(changed)
