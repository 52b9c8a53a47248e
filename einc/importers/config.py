"""Reads an untrusted JSON configuration: types and bounds are checked, every problem and every default is noted.

A reader asks for one field after another. A field that is wrong is noted and a stand-in is returned, so that all
problems of a configuration are reported together.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from einc.errors import MAX_FINDINGS, Diagnostic, ModelError
from einc.importers.read_fields import READ_FIELDS
from einc_runtime.strict_json import describe_json, parse_json
from einc_runtime.text import did_you_mean, escape_text

MAX_CONFIG_BYTES = 4 * 2**20
"""Configurations are a few kilobytes long; larger files are refused."""

_MAX_NAMED = 10  # fields in one note
_NO_DEFAULT = object()


def parse_config(data: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object in `data`; raises ModelError where there is none, or where a name stands twice in one object.

    NaN and infinities, which Python writes into published configurations, are read, and are no number for any field.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise _make_config_error(where, f"it holds more than {MAX_CONFIG_BYTES // 2**20} MiB")
    try:
        document = parse_json(data.removeprefix(codecs.BOM_UTF8), finite=False)
    except ValueError as error:
        raise _make_config_error(where, str(error)) from None
    if not isinstance(document, dict):
        raise _make_config_error(where, f"expected an object in braces, found {describe_json(document)}")
    return document


class ConfigFields:
    """The fields of one configuration. `where` names it in messages; `notes` are for the user, who wants the fields
    `ignored` to be passed over."""

    def __init__(self, document: Mapping[str, Any], where: str, ignored: Iterable[str] = ()) -> None:
        self.where = where
        self.ignored = frozenset(ignored)
        self.notes: list[str] = []
        self._problems: list[Diagnostic] = []
        self._document = document
        self._read_names: set[str] = set()

    def fail(self, message: str, hint: str | None = None) -> None:
        """Notes a problem."""
        self._problems.append(Diagnostic(f"{self.where}: {message}", None, hint))

    def note(self, message: str) -> None:
        self.notes.append(f"{self.where}: {message}")

    def check(self) -> None:
        """Raises ModelError with all problems, if there are any."""
        if not self._problems:
            return
        problems = self._problems[:MAX_FINDINGS]
        if len(problems) < len(self._problems):
            problems = [*problems, Diagnostic(f"{self.where}: and {len(self._problems) - len(problems)} more problems")]
        raise ModelError(problems)

    def names(self) -> frozenset[str]:
        """The names of all fields, which count as known then."""
        self._read_names.update(self._document)
        return frozenset(self._document)

    def value(self, *names: str) -> Any:
        """What stands under the first of these names that has something other than null, else None."""
        self._read_names.update(names)
        return next((self._document[name] for name in names if self._document.get(name) is not None), None)

    def is_null(self, name: str) -> bool:
        """Whether a field is there and null."""
        self._read_names.add(name)
        return name in self._document and self._document[name] is None

    def integer(self, name: str, maximum: int, default: object = _NO_DEFAULT, minimum: int = 1) -> int:
        """An integer between `minimum` and `maximum`; with no default the field must be there."""
        value = self.value(name)
        if value is None:
            return int(self._missing(name, default, minimum))
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{name}: expected an integer, found {describe_json(value)}")
        elif not minimum <= value <= maximum:
            self.fail(f"{name}: expected an integer from {minimum:,} to {maximum:,}, found {describe_json(value)}")
        else:
            return value
        return minimum

    def real(self, name: str, default: object = _NO_DEFAULT, *, above: float = 0.0, maximum: float = 1e12) -> float:
        """A finite number above a bound; an integer is accepted, too."""
        value = self.value(name)
        if value is None:
            return float(self._missing(name, default, 1.0))
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{name}: expected a number, found {describe_json(value)}")
        elif not above < value <= maximum or not math.isfinite(value):
            self.fail(f"{name}: expected a number above {above:g}, at most {maximum:g}, found {describe_json(value)}")
        else:
            return float(value)
        return 1.0

    def optional_real(self, name: str, default: float, *, maximum: float) -> float:
        """A number above 0, or the default. The default is not noted."""
        return default if self.value(name) is None else self.real(name, maximum=maximum)

    def reals(self, name: str, count: int) -> tuple[float, ...]:
        """A list of exactly `count` numbers above 0."""
        value = self.value(name)
        if isinstance(value, list) and len(value) == count:
            numbers = [n for n in value if isinstance(n, int | float) and not isinstance(n, bool) and 0 < n < 1e12]
            if len(numbers) == count:
                return tuple(map(float, numbers))
        self.fail(f"{name}: expected a list of {count} numbers above 0, found {describe_json(value)}")
        return (1.0,) * count

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return bool(self._missing(name, default, default))
        if not isinstance(value, bool):
            self.fail(f"{name}: expected true or false, found {describe_json(value)}")
            return default
        return value

    def text(self, name: str, default: object = _NO_DEFAULT) -> str:
        value = self.value(name)
        if value is None:
            return str(self._missing(name, default, ""))
        if not isinstance(value, str):
            self.fail(f"{name}: expected a string, found {describe_json(value)}")
            return ""
        return value

    def choice(self, name: str, meanings: Mapping[str, str], default: object = _NO_DEFAULT) -> str:
        """What the string in a field means; all others are not supported."""
        value = self.text(name, default)
        if value not in meanings:
            if value:
                known = ", ".join(meanings)
                self.fail(f"{name}: {describe_json(value)} is not supported", f"supported are {known}")
            return next(iter(meanings.values()))
        return meanings[value]

    def nested(self, *names: str) -> ConfigFields | None:
        """The fields of the object under the first of these names, or None if there is none.

        They share the notes and problems of these fields.
        """
        value = self.value(*names)
        if value is None:
            return None
        name = next(name for name in names if self._document.get(name) is not None)
        if not isinstance(value, dict):
            self.fail(f"{name}: expected an object or null, found {describe_json(value)}")
            return None
        inner = ConfigFields(value, f"{self.where}: {name}", self.ignored)
        inner._problems, inner.notes = self._problems, self.notes
        return inner

    def require(self, name: str, expected: Collection[object], why: str) -> None:
        """Notes a problem if the field has another value: that would be another computation, which is not supported."""
        value = self.value(name)
        if value is not None and not any(type(value) is type(e) and value == e for e in expected):
            self.fail(f"{name}: {describe_json(value)} is not supported: {why}")

    def check_unknown(self, harmless: Iterable[str], *kinds: str) -> None:
        """Looks at every field that nobody asked for.

        If transformers reads it in a configuration of these `kinds` (of READ_FIELDS), it may change what is computed:
        it is a problem, unless it is null, known to be harmless, or ignored as the user wants. So is a name that is
        close to that of a field that is not there: it is misspelt. All others change nothing, and are noted together.
        """
        known = self._read_names | set(harmless)
        meaningful = frozenset().union(*(READ_FIELDS[kind] for kind in kinds))
        absent = [name for name in sorted(self._read_names) if name not in self._document]
        unread = []
        for name, value in self._document.items():
            if name in known or value is None:
                continue
            if name in self.ignored:
                self.note(f"{escape_text(name, 80)} is ignored, as asked")
                continue
            is_shown = len(self._problems) < MAX_FINDINGS  # finding a similar name is slow
            likely = did_you_mean(name, absent, cutoff=0.88) if is_shown else None
            if name not in meaningful and likely is None:
                unread.append(escape_text(name, 80))
                continue
            hint = likely or f"--ignore {escape_text(name, 80)} ignores it"
            self.fail(f"{escape_text(name, 80)}: unknown field, {describe_json(value)}", hint)
        if unread:
            more = f" and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
            field = "field" if len(unread) == 1 else "fields"
            self.note(f"passed over, as transformers reads no such {field}: {', '.join(unread[:_MAX_NAMED])}{more}")

    def _missing(self, name: str, default: object, stand_in: object) -> Any:
        if default is _NO_DEFAULT:
            self.fail(f"{name} is missing")
            return stand_in
        self.note(f"{name} is not given: {describe_json(default)}, the default of transformers")
        return default


def _make_config_error(where: str, why: str) -> ModelError:
    return ModelError([Diagnostic(f"{where}: this is no configuration: {why}")])
