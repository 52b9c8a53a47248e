"""The inputs that are kept: one file each, named by its content, and how many inputs were tried on the way."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.targets import ROOT, Target, accepts

FOLDER = Path(__file__).parent / "corpus"
COUNTS = Path(__file__).parent / "counts.json"
MAX_KEPT_BYTES = 4096
"""Larger inputs are not kept."""
MAX_KEPT = 48
"""So many files at most are kept of a target."""
MAX_CORPUS_BYTES = 400_000
"""All files together."""


def read_corpus(target: Target) -> list[bytes]:
    """The valid files to start from, and what was kept of earlier runs."""
    return [*target.seeds(), *(path.read_bytes() for path in list_kept(target))]


def list_kept(target: Target) -> list[Path]:
    return sorted((FOLDER / target.name).glob("*"))


def keep(target: Target, inputs: Iterable[bytes]) -> None:
    """Replaces what is kept of a target."""
    folder = FOLDER / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for path in list_kept(target):
        path.unlink()
    for data in inputs:
        (folder / name_of(data)).write_bytes(data)


def name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def minimize(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Few inputs that take the same steps as all of them, from line to line; those that take most new steps first."""
    taken = {data: find_steps(target, data) for data in dict.fromkeys(inputs) if len(data) <= MAX_KEPT_BYTES}
    known = set().union(*(find_steps(target, data) for data in target.seeds()))
    kept: list[bytes] = []
    while taken and len(kept) < MAX_KEPT:
        best = max(taken, key=lambda data: (len(taken[data] - known), -len(data), data))
        if not taken[best] - known:
            break
        known |= taken.pop(best)
        kept.append(best)
    return kept


def find_steps(target: Target, data: bytes) -> frozenset[tuple[str, int, int]]:
    """The steps from line to line of the product's own code while the input is read."""
    steps: set[tuple[str, int, int]] = set()
    folders = (str(ROOT / "einc"), str(ROOT / "runtime"))

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(folders):
            return None
        last = 0

        def trace_lines(inner: FrameType, kind: str, _: Any) -> Any:
            nonlocal last
            if kind == "line":
                steps.add((name, last, inner.f_lineno))
                last = inner.f_lineno
            return trace_lines

        return trace_lines

    sys.settrace(trace)
    try:
        accepts(target, data)
    finally:
        sys.settrace(None)
    return frozenset(steps)


def add_count(name: str, inputs: int, accepted: int, seconds: float) -> None:
    """Adds a run to the figures of a target."""
    counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    before = counts.get(name, {"inputs": 0, "accepted": 0, "seconds": 0})
    counts[name] = {
        "inputs": before["inputs"] + inputs,
        "accepted": before["accepted"] + accepted,
        "seconds": round(before["seconds"] + seconds),
    }
    COUNTS.write_text(json.dumps(dict(sorted(counts.items())), indent=2) + "\n")
