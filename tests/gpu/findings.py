"""What the check has found, and whether that is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.cases import BENCHMARKS, TOLERANCE

Record = Mapping[str, Any]
ONE, MANY, OWN, TUNED = "einc", "einc, 8 sites", "einc, own attention", "einc, tuned"
NO_TIME = "there was no time for it"


@dataclass(slots=True)
class Findings:
    """Everything that workers reported.

    `lost` are cases that took the process with them, `broken` benchmarks that did or took too long, `left` what was
    not reached; `complaints` are what their processes said. `probes` are the primitives, and `unchecked` cases that
    were not run since they need a broken one. `own_attention` is a case after whose loss no library computed attention
    any more, or why none did from the beginning. `checked` and `measured` count the cases and benchmarks that are over.
    """

    checks: list[Record] = field(default_factory=list)
    benchmarks: list[Record] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    kernels: Record = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    own_attention: str = ""
    finished: bool = False
    rehearsal: bool = False
    probes: list[Record] = field(default_factory=list)
    unchecked: list[Record] = field(default_factory=list)
    ceilings: Record = field(default_factory=dict)
    links: Record = field(default_factory=dict)
    sanitizer: Record = field(default_factory=dict)
    checked: int = 0
    measured: int = 0

    def take(self, record: Record) -> None:
        """A benchmark's record, which replaces an earlier one of the same benchmark."""
        self.benchmarks = [one for one in self.benchmarks if one["name"] != record["name"]] + [record]

    def take_check(self, record: Record) -> None:
        """A case's record. The first one of a reproducible case says which bits the others must have."""
        first = next((own for own in self.checks if own["case"] == record["case"] and own.get("bits")), record)
        alike = not record.get("bits") or record["bits"] == first["bits"]
        self.checks.append(record if alike else {**record, "unlike": first["sites"]})

    @property
    def wrong(self) -> list[Record]:
        return [record for record in self.checks if not holds(record)]

    @property
    def passed(self) -> bool:
        """Whether something was checked, all of it was right, and nothing is broken that a case needs."""
        off = [record for record in self.benchmarks if not record["errors"] or not_accurate(record)]
        return bool(self.checks or self.benchmarks) and not (
            self.wrong or self.lost or off or self.unchecked or self.sanitizer.get("status") == "failed"
        )


def holds(record: Record) -> bool:
    errors = [record[key] for key in ("error", "torch_error") if record[key] is not None]
    right = not record["problem"] and bool(errors) and max(errors) <= record["tolerance"] and record["same_bits"]
    return right and "unlike" not in record


def not_accurate(record: Record) -> list[str]:
    """Plans of a benchmark whose result is not PyTorch's, or that did not run."""
    most = 2 * TOLERANCE[next(own.dtype for own in BENCHMARKS if own.name == record["name"])]
    far = [name for name, error in record["errors"].items() if not error <= most]
    return far + [name for name in (ONE, MANY) if record["problems"].get(name, NO_TIME) != NO_TIME]
