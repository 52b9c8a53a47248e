"""Where the sites of a case lie: on one GPU, on GPUs that one GPU plays, or on as many GPUs as there are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tests.gpu.cases import CASES, Case


class Layout(Enum):
    """ONE: all sites on the first GPU. ALIASED: every site on a GPU of its own, all played by the GPUs that are there;
    STAGED: the same, and none of them reaches another's memory. SPREAD: over all GPUs that are there, two or more."""

    ONE = "one"
    ALIASED = "aliased"
    STAGED = "staged"
    SPREAD = "spread"


_TOLD = {
    Layout.ONE: "",
    Layout.ALIASED: ", each on a GPU of its own that this one plays",
    Layout.STAGED: ", the same without access to each other",
    Layout.SPREAD: ", over all GPUs",
}

APART = (
    ("llama_block", "f16"), ("llama_block", "f32"), ("llama", "f32"), ("chain_a", "f32"), ("chain_c", "f32"),
    ("rows", "f32"), ("merges", "f32"), ("attention_cases", "f16"), ("letters", "f32"),
)  # fmt: skip
"""Cases that run with every site on a GPU of its own, as pipelines do: streams for every pair of sites, transfers, and
staging."""

REHEARSED = (1, 3, 8)
"""Numbers of sites whose plans are compared in a rehearsal, where they are to have the same bits."""


@dataclass(frozen=True, slots=True)
class Run:
    """One case, by its position, for a number of sites."""

    number: int
    sites: int
    layout: Layout = Layout.ONE

    @property
    def case(self) -> Case:
        return CASES[self.number]

    @property
    def title(self) -> str:
        return f"{self.case.title} on {self.sites} sites{_TOLD[self.layout]}"


def list_runs(gpus: int, *, rehearsal: bool) -> list[Run]:
    """All cases in their order; what a CPU can do, and with the largest number of sites only, in a rehearsal.

    Those that are reproducible run with every site on a GPU of its own, for every number of sites.
    """
    runs: list[Run] = []
    for number, case in enumerate(CASES):
        if rehearsal and case.slow:
            continue
        if case.reproducible:
            counts = REHEARSED if rehearsal else case.sites
            runs += [Run(number, sites, Layout.ALIASED if sites > 1 else Layout.ONE) for sites in counts]
            runs += [Run(number, sites, Layout.STAGED) for sites in counts[-1:]]
            runs += [Run(number, sites, Layout.SPREAD) for sites in counts[-1:] if gpus > 1]
            continue
        runs += [Run(number, sites) for sites in (case.sites[-1:] if rehearsal else case.sites)]
        if not case.microbatches and (case.name, case.dtype) not in APART[:: 3 if rehearsal else 1]:
            continue
        runs += [Run(number, case.sites[-1], layout) for layout in (Layout.ALIASED, Layout.STAGED)]
        if gpus > 1 and case.dtype == "f32":
            runs.append(Run(number, case.sites[-1], Layout.SPREAD))
    return runs
