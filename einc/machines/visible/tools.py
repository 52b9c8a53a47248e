"""What the command lines of the drivers print: `nvidia-smi topo`, `rocm-smi --showtopo`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence

from einc.machines.visible.nvml import normalize_bus_id

TOOL_SECONDS = 20.0
"""A tool that takes longer does not answer: drivers of broken GPUs may hang."""
_MAX_OUTPUT = 4 << 20
"""Characters of a tool's answer that are read: as many as a topology file may have."""

Runner = Callable[[Sequence[str]], str | None]
"""Runs a command line, and returns what it printed, or None where that failed."""


def run_tool(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[:_MAX_OUTPUT].decode(errors="replace") if done.returncode == 0 else None


def ask_nvidia_smi(run: Runner) -> tuple[str, dict[str, int]] | None:
    """The tables `topo -m` and `topo -p2p r` in one text, and the number that the tool gives to each GPU, by bus id."""
    listed = run(("nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"))
    matrix = run(("nvidia-smi", "topo", "-m"))
    if not listed or not matrix:
        return None
    numbers = re.findall(r"^\s*([0-9]{1,4}), *([0-9A-Fa-f:.]{7,20})\s*$", listed, re.MULTILINE)
    peers = run(("nvidia-smi", "topo", "-p2p", "r")) or ""
    return f"{matrix}\n{peers}", {normalize_bus_id(bus_id): int(number) for number, bus_id in numbers}


def ask_rocm_smi(run: Runner) -> str | None:
    """The tables of the topology and of the bandwidths of links, and the names and memory of the GPUs."""
    tables = run(("rocm-smi", "--showtopo"))
    options = (("--shownodesbw",), ("--showproductname",), ("--showmeminfo", "vram"))
    return None if not tables else "\n".join((tables, *(run(("rocm-smi", *words)) or "" for words in options)))
