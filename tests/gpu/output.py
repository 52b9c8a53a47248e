"""Where the page goes, and beside it everything that was found, as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.gpu.findings import Findings
from tests.gpu.report import page

ENVIRONMENT = "OUT"
"""Names a folder for results, where the page cannot be written in the checkout."""


def choose_file(wanted: Path) -> Path:
    """The file itself, if it can be written; else one of that name in the folder that OUT names, or a new one."""
    for folder in (wanted.parent, *(Path(own) for own in [os.environ.get(ENVIRONMENT, "")] if own)):
        file = folder / wanted.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with file.open("a"):
                return file
        except OSError as error:
            print(f"{file} cannot be written ({error.strerror or error})", flush=True)
    return Path(tempfile.mkdtemp(prefix="einc-gpu-")) / wanted.name


def read(file: Path, facts: Mapping[str, str]) -> Findings | None:
    """What a check found that did not come to its end, at the same commit on the same machine; None where there is no
    such file."""
    try:
        record = json.loads(file.with_suffix(".json").read_text())
        where, _ = record.pop("facts"), record.pop("seconds")
        findings = Findings(**record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    same = all(where.get(name) == fact for name, fact in facts.items() if name != "date")
    if not same or (findings.finished and not findings.left):
        return None
    findings.left, findings.finished = [], False
    return findings


def write(file: Path, findings: Findings, facts: Mapping[str, str], seconds: float) -> None:
    """The page, and the records with all samples beside it; a full disk ends nothing."""
    raw = file.with_suffix(".json")
    record = {"facts": dict(facts), "seconds": round(seconds, 1), **asdict(findings)}
    try:
        file.write_text(page(findings, facts, seconds, raw.name))
        raw.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        print(f"the page was not written: {error}", flush=True)
