"""Text for messages: names and values of unknown origin made safe to print, hints for misspelled names, amounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal

_MAX_COMPARED = 2000
"""The greatest number of names that a misspelled one is compared with; each takes up to a tenth of a millisecond."""


_MEMORY = r"([0-9]{1,19}(?:\.[0-9]{1,19})?) ?(?:([KMGT])(i?)B|B?)"
_LARGEST_MEMORY = 1 << 62
"""Bytes that sums of a few amounts of memory keep within 64 bits."""


def shorten(text: str, limit: int) -> str:
    """The text, cut to `limit` characters with an ellipsis at its end where it is longer."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escape_text(text: str, limit: int = 200) -> str:
    """A text of unknown origin, cut to `limit` characters, with escapes for what a terminal could take for commands."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shorten(text, limit))


def replace_unprintable(text: str, substitute: str = "?", keep: str = "") -> str:
    """The text with one character in place of each that is not printable, apart from those in `keep`.

    All positions in the text stay the same; with `escape_text` they may not.
    """
    return "".join(c if c.isprintable() or c in keep else substitute for c in text)


def quote_names(names: Sequence[str], limit: int = 8) -> str:
    """`'a', 'b' and 3 more`: the first names of many."""
    first = ", ".join(f"'{escape_text(name, 100)}'" for name in names[:limit]) or "nothing"
    return first + (f" and {len(names) - limit} more" if len(names) > limit else "")


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.7) -> str | None:
    """A hint with the known name that is most like `name`, or None where none is like it: of four letters, three are
    equal then. Capital letters count as small ones."""
    import difflib

    name = name[:100].lower()
    factor = 2 / cutoff - 1  # names whose lengths differ by more are never alike
    near = [w for w in sorted(set(known)) if len(w) <= factor * len(name) and len(name) <= factor * len(w)]
    spelled = {word.lower(): word for word in reversed(near[:_MAX_COMPARED])}
    best = difflib.get_close_matches(name, list(spelled), 1, cutoff)
    return f"did you mean '{escape_text(spelled[best[0]], 100)}'?" if best else None


def suggest_name(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not among `known`: the one that is most like it, else the first of all."""
    return did_you_mean(name, known) or f"there are {quote_names(known)}"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 argument`, `3 arguments`, `2 indices`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def parse_memory(text: str) -> int | None:
    """The bytes of `24GiB`, `24 GB`, `800MiB`, or of a number alone; None for what is no amount of memory."""
    parts = re.fullmatch(_MEMORY, text.strip(), re.IGNORECASE)
    if parts is None:
        return None
    amount, unit, binary = parts.groups()
    power = "KMGT".index(unit.upper()) + 1 if unit else 0
    size = int(Decimal(amount) * (1024 if binary else 1000) ** power)
    return size if 0 < size < _LARGEST_MEMORY else None


def format_memory(count: int) -> str:
    """An amount of bytes: exact below 10 KiB, else four digits and a power of 1024."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < (10_240 if unit == "B" else 1024):
            break
        amount, unit = amount / 1024, larger
    return f"{count:,} B" if unit == "B" else f"{amount:.4g} {unit}"


def format_gibibytes(count: int) -> str:
    """`1.50 GiB`: for amounts of memory that are compared with each other."""
    return f"{count / 2**30:,.2f} GiB"
