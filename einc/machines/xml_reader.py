"""Reads the elements and attributes of an untrusted XML text.

Document types are refused but for those that only name the file of their definition, which is never opened: so there
are no entities but the five of the language, and nothing external. Expat reads the text in one call; the depth and
number of elements are bounded here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from einc.errors import EincError, MachineError, SourceSpan

_MAX_XML_ELEMENTS = 200_000  # elements of a file, whose sender may be hostile
_MAX_ATTRIBUTES = 100  # of one element; those of topologies have about ten
_MAX_DEPTH = 64  # levels; a topology has about ten

_KNOWN_DEFINITIONS = (("topology", "hwloc2.dtd"), ("topology", "hwloc.dtd"))
"""The document types that hwloc writes."""


@dataclass(frozen=True, slots=True)
class _TextPosition:
    """A position in the text: `row` counts from 1, `column` from 0."""

    file: str
    lines: list[str]
    row: int
    column: int

    def span(self) -> SourceSpan:
        """The tag that begins here, or the rest of the line."""
        line = self.lines[self.row - 1].rstrip() if self.row <= len(self.lines) else ""
        column = min(self.column, len(line))
        end = line.find(">", column) + 1 or len(line)
        return SourceSpan(self.file, self.row, column + 1, max(end, column + 1) + 1, line)


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """One element; `path` are those that it stands in, outermost first, and `text` the pieces of its own text."""

    name: str
    attributes: dict[str, str]
    path: tuple[Element, ...]
    position: _TextPosition
    text: list[str] = field(default_factory=list)

    @property
    def span(self) -> SourceSpan:
        return self.position.span()

    def inside(self, name: str) -> Element | None:
        """The innermost element of this name that it stands in."""
        return next((element for element in reversed(self.path) if element.name == name), None)


def read_elements(text: str, where: str, error: type[EincError] = MachineError) -> list[Element]:
    """All elements in document order. Raises `error` for what is not plain, small XML."""
    lines = text.split("\n")
    open_elements: list[Element] = []
    elements: list[Element] = []
    parser = expat.ParserCreate("utf-8")  # whatever the text declares: it has been decoded already

    def current_position() -> _TextPosition:
        return _TextPosition(where, lines, parser.CurrentLineNumber, parser.CurrentColumnNumber)

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(elements) == _MAX_XML_ELEMENTS:
            raise error(f"more than {_MAX_XML_ELEMENTS} elements", where=current_position().span())
        if len(open_elements) == _MAX_DEPTH:
            raise error(f"elements nested deeper than {_MAX_DEPTH} levels", where=current_position().span())
        if len(attributes) > _MAX_ATTRIBUTES:
            raise error(f"an element with more than {_MAX_ATTRIBUTES} attributes", where=current_position().span())
        element = Element(name, attributes, tuple(open_elements), current_position())
        elements.append(element)
        open_elements.append(element)

    def refuse(*_: object) -> int:
        message = "a document type (<!DOCTYPE), which einc does not read"
        raise error(message, where=current_position().span(), hint="delete it: NCCL writes none")

    def check_doctype(name: str, definition: str | None, public: str | None, has_subset: bool) -> None:
        if has_subset or public is not None or (name, definition) not in _KNOWN_DEFINITIONS:
            refuse()

    def add_text(text: str) -> None:
        if open_elements:
            open_elements[-1].text.append(text)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: open_elements.pop()
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = check_doctype
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as mistake:
        reason = expat.errors.messages[mistake.code]
        raise error(f"not well-formed XML: {reason}", where=current_position().span()) from None
    except UnicodeEncodeError:
        raise error("the file holds characters that are no text", where=where) from None
    return elements
