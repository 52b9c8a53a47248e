"""The options of a compilation, as the command line and the Python API state them."""

from __future__ import annotations

from dataclasses import dataclass

SELECTORS = ("eindecomp", "greedy", "random")
"""What chooses the cuts; `einc.logical.optimize` says how."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What may be chosen about a compilation beside the model itself.

    `machine` is a preset's name or a path; None takes the visible GPUs, else the host. `devices` lists sites of the
    machine (None: all). `definitions` are `-D` pairs of a name and the text of an expression.
    """

    machine: str | None = None
    devices: tuple[int, ...] | int | None = None
    definitions: tuple[tuple[str, str], ...] = ()
    preset: str | None = None
    dtype: str | None = None
    selector: str = "eindecomp"
    schedule: str = "ai"
    seed: int = 0
    time_limit: float | None = None
    ideal: bool = False
