"""One plan that an experiment asks for, and what is known of it once it is compiled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from einc.options import INPUT_PLACEMENTS

MODELS = Path(__file__).resolve().parents[3] / "models"
BLOCKS = ("b1x1k", "b1x8k", "b1x128k", "b8x1k", "b128x1k")
CHAINS = ("chain_a", "chain_b", "chain_c", "chain_d", "chain_e")
WORKLOADS = (*BLOCKS, *CHAINS)

TITLES = {
    "b1x1k": "1 x 1K",
    "b1x8k": "1 x 8K",
    "b1x128k": "1 x 128K",
    "b8x1k": "8 x 1K",
    "b128x1k": "128 x 1K",
    **{f"chain_{letter}": f"chain {letter.upper()}" for letter in "abcde"},
}
"""How pages and plots call them: sequences by tokens of each, and chains."""

PLACEMENTS = INPUT_PLACEMENTS
OBJECTIVES = ("eindecomp", "fastest")
"""The paper's selector, and the one that predicts times."""


@dataclass(frozen=True, order=True, slots=True)
class Configuration:
    """A workload on the first `sites` sites of a machine, compiled in one way.

    `selector` may also name a well-known plan (`einc.options.BASELINES`). `seed` is that of the draw, if it is
    `random`.
    """

    workload: str
    machine: str = "dgx-a100"
    sites: int = 8
    placement: str = "replicated"
    selector: str = "eindecomp"
    schedule: str = "synthesized"
    seed: int = 0

    @property
    def model(self) -> str:
        return self.workload if self.workload in CHAINS else "llama_block"

    @property
    def preset(self) -> str | None:
        return None if self.workload in CHAINS else self.workload

    @property
    def title(self) -> str:
        """For a line of progress."""
        draw = f" {self.seed}" if self.selector == "random" else ""
        return (
            f"{TITLES[self.workload]}, {self.sites} of {self.machine}, inputs {self.placement}, "
            f"{self.selector}{draw}, {self.schedule}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the compiler says of a configuration; `problem` says why there is no plan, and the rest is 0 then.

    `cost` is the paper's, in elements; times are predicted milliseconds. `free_ms` is the time of the same kernels if
    nothing had to move or be combined. `moved` are bytes between sites, `memory` those of the fullest site.
    """

    predicted_ms: float = 0.0
    free_ms: float = 0.0
    cost: int = 0
    moved: int = 0
    memory: int = 0
    cuts: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def fits(self) -> bool:
        return not self.problem


Outcomes = dict[Configuration, Outcome]


def record_of(configuration: Configuration, outcome: Outcome) -> dict[str, Any]:
    """Both as one flat record, whose cuts are a text."""
    cuts = "; ".join(f"{name} {cut}" for name, cut in outcome.cuts)
    return asdict(configuration) | asdict(outcome) | {"cuts": cuts}


def read_record(record: dict[str, Any]) -> tuple[Configuration, Outcome]:
    """The inverse of `record_of`."""
    own = {name: record[name] for name in Configuration.__slots__}
    found = {name: record[name] for name in Outcome.__slots__}
    cuts = tuple(tuple(part.split(" ", 1)) for part in found["cuts"].split("; ") if part)
    return Configuration(**own), Outcome(**found | {"cuts": cuts})
