"""The faults of a program that was read from a text, each pointing at the statement that it comes from."""

from __future__ import annotations

from einc.errors import Diagnostic
from einc.exprog.checker import Verdict
from einc.exprog.resolve import Resolved
from einc.exprog.words import partition_text


def findings(resolved: Resolved, verdict: Verdict) -> tuple[Diagnostic, ...]:
    """One diagnostic per fault of `check(resolved.program, machine)`.

    A fault of a program whose memberships were open is that of the first membership, as none is valid; it says so.
    """
    hint = None
    if resolved.chosen:
        shown = " ".join(map(partition_text, resolved.program.partitions))
        hint = f"no choice of memberships makes the program valid; this is said of the first: {shown}"
    found = []
    for fault in verdict.faults:
        place = None if fault.subject is None else resolved.places.get(fault.subject)
        span = None if place is None else resolved.source.span(place)
        found.append(Diagnostic(fault.message, span, hint))
    return tuple(found)
