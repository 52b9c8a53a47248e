"""What is compared: the plans of a workload on the sites of a machine that is offered, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from einc.advising.figures import Figures
from einc.options import CompileOptions
from einc_runtime.text import format_count

TIME_LIMIT_REACHED = "not planned: the time limit was reached"
"""The problem of a plan, and of an option, for which there was no time left."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine with its sites, as the options of a compilation name them; `hourly` is the price of all its sites for
    an hour, None where no price is known."""

    options: CompileOptions
    hourly: float | None = None


@dataclass(frozen=True, slots=True)
class AdviceOption:
    """`replicas` of a model on groups of equal numbers of sites of an offer, for `users` at once.

    `named` is what the user calls the machine. With `prompt_sites`, so many of the sites read prompts alone, and send
    the caches to the others, which make tokens. With `stages`, a run is made in pipeline stages, by `microbatches` of
    the users of each replica; or so many prompts are read together on the sites for prompts, in stages. `figures` are
    those of the slowest group. If a phase could
    not be planned, all times are None, and `problem` says why. `latency_ms` is the time of a token of every user, or of
    a run; `first_ms` that of reading a prompt, and of moving its caches; `round_ms` that of all that is done for the
    users of one replica. `rate` counts what all replicas make in a second, `unit_cost` is the price of a million of
    these. `shared` names links that several replicas use, which each was predicted to have alone. An option that was
    not planned as another one is no worse is `beaten`.
    """

    machine: str
    named: str
    sites: int
    replicas: int
    users: int
    prompt_sites: int
    figures: dict[str, Figures]
    stages: int = 1
    microbatches: int = 1
    hourly: float | None = None
    latency_ms: float | None = None
    first_ms: float | None = None
    round_ms: float | None = None
    rate: float | None = None
    unit_cost: float | None = None
    memory_bytes: int | None = None
    shared: tuple[str, ...] = ()
    problem: str | None = None
    beaten: bool = False

    @property
    def is_unplanned(self) -> bool:
        """Whether there was no time left for it, so that nothing is known of it."""
        return self.problem == TIME_LIMIT_REACHED

    def is_no_worse(self, option: AdviceOption) -> bool:
        """Whether it has times, no longer latency and no lower rate than the other one."""
        if self.rate is None or option.rate is None or self.latency_ms is None or option.latency_ms is None:
            return False
        return self.latency_ms <= option.latency_ms and self.rate >= option.rate


@dataclass(frozen=True, slots=True)
class Limits:
    """What an option must keep to: milliseconds for a token (or a run), and for the first token of an answer, the price
    of an hour, which an option without a price is taken to keep to, and the least rate in what it makes a second."""

    latency_ms: float | None = None
    first_ms: float | None = None
    hourly: float | None = None
    rate: float = 0.0

    def allow(self, option: AdviceOption) -> bool:
        """Whether an option has times, and keeps to the limits."""
        if option.rate is None or option.latency_ms is None or option.rate < self.rate:
            return False
        told = (option.latency_ms, option.first_ms, option.hourly)
        limits = (self.latency_ms, self.first_ms, self.hourly)
        return all(most is None or value is None or value <= most for value, most in zip(told, limits, strict=True))


def describe_sites(sites: int, replicas: int, prompt_sites: int = 0, stages: int = 1) -> str:
    """`8 sites`, `2 replicas on 4 sites each`, or `6 sites for tokens and 2 in 2 stages for prompts`."""
    divided = f" in {stages} stages" if stages > 1 else ""
    if prompt_sites:
        return f"{format_count(sites - prompt_sites, 'site')} for tokens and {prompt_sites}{divided} for prompts"
    if replicas == 1:
        return format_count(sites, "site") + divided
    return f"{replicas} replicas on {format_count(sites // replicas, 'site')} each{divided}"
