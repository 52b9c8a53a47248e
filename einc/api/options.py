"""The options of `compile` and `compileGraph` by name; `einc.options.CompileOptions` has their meaning."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from einc.exchange.synthesis.proposers import Proposer


class GraphOptions(TypedDict, total=False):
    """How a graph is planned: `memory` is in bytes of each site, or such as "24GiB", `time_limit` in seconds."""

    selector: Literal["fastest", "eindecomp", "greedy", "random"]
    seed: int
    time_limit: float | None
    ideal: bool
    memory: int | str | None
    input_placement: Literal["replicated", "once"]
    reproducible: bool
    price_pins: bool
    tiles: bool


class PlanningOptions(GraphOptions, total=False):
    """How a model of any kind is planned; `compileGraph` says what most of these are.

    `train`, `gradients`, `optimizer`, `clip`, `precision`, `accumulate`, `decay` and `recompute` are those of `einc
    compile --train`, for model texts alone, and `undecayed` are the patterns of `--no-decay`; `latency_at_most` is in
    milliseconds.
    """

    schedule_mode: Literal["synthesized", "naive", "ai"]
    schedule: Literal["synthesized", "naive", "ai"]
    pins: Mapping[str, str]
    baselines: Iterable[str]
    exchanges: Mapping[str, str | os.PathLike[str]]
    proposers: Iterable[str | Proposer]
    step: Mapping[str, int]
    train: str
    gradients: Sequence[str]
    optimizer: Literal["sgd", "adamw", "lion"]
    clip: float
    precision: Literal["bf16", "f16"]
    accumulate: bool
    decay: float
    undecayed: Sequence[str]
    recompute: str
    objective: Literal["latency", "throughput"]
    latency_at_most: float | None
    stages: int | None
    microbatches: int | None
    replicas: int | None
