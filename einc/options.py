"""The options of a compilation, as the command line and the Python API state them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from einc.errors import UsageError

if TYPE_CHECKING:
    from einc.graph.decode_step import StepRequest
    from einc.logical.pins import Pin
    from einc_runtime.plan.schema import InputPlacement

FASTEST = "fastest"
AUTO = "auto"
"""What is computed again for gradients is chosen so that a plan fits."""

SELECTORS = (FASTEST, "eindecomp", "greedy", "random")
"""What chooses the cuts: `einc.search` says how the first does, and `einc.logical.optimize` the others."""

BASELINES = {
    "single": ("single",),
    "data": ("data",),
    "sequence": ("sequence", "sequence-heads"),
    "megatron": ("megatron", "megatron-sequence"),
    "fsdp": ("fsdp", "fsdp-megatron"),
}
"""Well-known plans that a plan can be compared with, and the variants that are built for each name;
`einc.search.baselines` says what they are."""

SCHEDULES = {"synthesized": "synthesized", "naive": "naive", "ai": "synthesized"}
"""How data movement is planned: for every accepted spelling, the name. The paper says `ai` for `synthesized`."""

Objective = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput")
"""What a plan is chosen for: that one run ends soon, on all sites together; or that a large batch ends soon, also by
stages, micro-batches and replicas."""

MAX_DIVISIONS = 1024
"""Stages, micro-batches, and replicas: a plan has at most so many sites, and every micro-batch has tasks of its own."""

INPUT_PLACEMENTS: tuple[InputPlacement, ...] = ("replicated", "once")
"""Where inputs and weights lie before the clock starts.

With `replicated`, every site has all that it reads. With `once`, every block lies on one site, and what other sites
read of it moves while the clock runs.
"""


@dataclass(frozen=True, slots=True)
class GivenExchange:
    """A person's own exchange program: its text, the name of the file that it is from, and what it is for.

    `name` is that of an operator, `output NAME`, or a pattern with `*` and `?` for several of them.
    """

    name: str
    text: str
    file: str


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What may be chosen about a compilation beside the model itself.

    `machine` is a preset's name or a path; None takes the visible GPUs, else the host. `devices` lists sites of the
    machine (None: all), and `memory` is how many bytes of each the plan may take. `definitions` are `-D` pairs of a
    name and the text of an expression. `schedule` may be given in every spelling of `SCHEDULES`; the attribute is
    always the name. `pins` fix the cuts of some operators. The plan is compared with those that `baselines` (names of
    `BASELINES`) stand for, and a faster one of them is taken instead. `exchanges` are used in place of the compiler's.
    With a `step`, what is planned is the decode step that is derived from the model. With `train`, the name of a loss
    among the outputs, its gradients are added: those of all weights, or of the tensors that `gradients` names. With an
    `optimizer` beside it, what is planned is a training step, in which the norm of all gradients is at most `clip`,
    products have the type `precision`, weights decay by `decay`, but those that a pattern of `undecayed` matches, and
    with `accumulate` gradients are added up over several runs. `recompute` says which values are computed again for
    gradients: `auto` as little as fits, or what `einc.training.recomputation` reads.
    With `reproducible`, results have the same bits for any number of sites and any options but those of the model. With
    `price_pins`, a plan without the pins is searched for, too, and the plan says what that one would take.

    With `tiles`, products may be computed in tiles, each of which is sent while the next is computed, where that is
    predicted to be faster (`einc.search.tiles`).

    With the objective `throughput`, or where `stages`, `microbatches` or `replicas` are given, plans that divide the
    batch and the operators are compared, too (`einc.stages`). A plan that takes more than `latency_at_most`
    milliseconds is an error.

    `machine="dgx-h100:4"` and `machine="dgx-h100:0,1"` are short for a machine and `devices`. Raises UsageError where
    both say which sites.
    """

    machine: str | None = None
    devices: tuple[int, ...] | int | None = None
    definitions: tuple[tuple[str, str], ...] = ()
    preset: str | None = None
    dtype: str | None = None
    selector: str = "fastest"
    schedule: str = "synthesized"
    seed: int = 0
    time_limit: float | None = None
    ideal: bool = False
    exchanges: tuple[GivenExchange, ...] = ()
    memory: int | None = None
    pins: tuple[Pin, ...] = ()
    baselines: tuple[str, ...] = ()
    input_placement: InputPlacement = "replicated"
    reproducible: bool = False
    price_pins: bool = False
    tiles: bool = False
    step: StepRequest | None = None
    train: str | None = None
    gradients: tuple[str, ...] | None = None
    optimizer: str | None = None
    clip: float | None = None
    precision: str | None = None
    accumulate: bool = False
    decay: float | None = None
    undecayed: tuple[str, ...] = ()
    recompute: str = AUTO
    objective: Objective = "latency"
    latency_at_most: float | None = None
    stages: int | None = None
    microbatches: int | None = None
    replicas: int | None = None

    @property
    def trains(self) -> bool:
        """Whether anything is said about gradients."""
        named = (self.train, self.gradients, self.optimizer)
        return named != (None,) * len(named) or self.changes_steps or self.recompute != AUTO

    @property
    def changes_steps(self) -> bool:
        """Whether anything is said about what an optimizer does with gradients."""
        named = (self.clip, self.precision, self.decay)
        return named != (None,) * len(named) or self.accumulate or bool(self.undecayed)

    @property
    def may_recompute(self) -> bool:
        """Whether values are computed again for gradients where a plan does not fit otherwise."""
        return self.train is not None and self.selector == FASTEST and self.recompute == AUTO

    @property
    def divides(self) -> bool:
        """Whether plans with stages, micro-batches or replicas are looked for."""
        return self.objective == "throughput" or (self.stages, self.microbatches, self.replicas) != (None, None, None)

    def __post_init__(self) -> None:
        if self.machine is not None and ":" in self.machine:
            from einc.machines.load import split_sites

            name, sites = split_sites(self.machine)
            if sites is not None and self.devices is not None:
                raise UsageError(
                    f"{self.machine} names sites, and others are asked for", hint="leave out one of the two"
                )
            object.__setattr__(self, "machine", name)
            object.__setattr__(self, "devices", self.devices if sites is None else sites)
        object.__setattr__(self, "schedule", SCHEDULES.get(self.schedule, self.schedule))
        if self.tiles:
            self._require_tiles()

    def _require_tiles(self) -> None:
        """Raises UsageError where something else is asked for that no plan with tiles has."""
        refused = {
            "stages, micro-batches and replicas": self.divides,
            "gradients": self.trains,
            "given exchange programs": bool(self.exchanges),
            "inputs that lie once": self.input_placement == "once",
            "naive exchanges": self.schedule == "naive",
            f"the selector {self.selector}": self.selector != FASTEST,
        }
        named = [name for name, is_asked in refused.items() if is_asked]
        if named:
            raise UsageError(
                f"products in tiles are not planned together with {named[0]}", hint="leave out one of the two"
            )
