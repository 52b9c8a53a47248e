"""Clocks, power and temperature of a GPU, as nvidia-smi tells them, for whoever judges times by them later."""

from __future__ import annotations

import os
import subprocess
from shutil import which

FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_event_reasons.active")
"""MHz, MHz, W, degrees Celsius, and what holds the clocks back, as bits."""
PATIENCE = 5.0
"""Seconds."""


def sample() -> dict[str, str]:
    """The state now of the first visible GPU; empty where nvidia-smi is missing or gives no answer."""
    if which("nvidia-smi") is None:
        return {}
    for fields in (FIELDS, FIELDS[:-1]):  # older drivers know the last one by another name
        command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *chosen()]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        lines = found.strip().splitlines()
        if lines:
            return dict(zip(fields, (value.strip() for value in lines[0].split(",")), strict=False))
    return {}


def chosen() -> list[str]:
    """The arguments of nvidia-smi for the first visible GPU; it does not follow CUDA_VISIBLE_DEVICES."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return ["--id", first] if first and not first.startswith(("MIG", "-")) else []


def told(state: dict[str, str]) -> str:
    """In words, empty where nothing is known."""
    if not state:
        return ""
    clock, memory, power, heat = (state.get(name, "?") for name in FIELDS[:4])
    return f"{clock} MHz (memory {memory} MHz), {power} W, {heat} C"
