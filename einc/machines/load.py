"""Machines by preset name or from a JSON file: the front door of the room. Validation stands in `schema.py`."""

from __future__ import annotations

import functools
import os
from importlib import resources
from pathlib import Path

from einc.errors import MachineError, ReadError, UsageError
from einc.machines.model import Machine
from einc.machines.schema import MAX_SITES, MAX_TEXT, machine_json, parse_machine
from einc_runtime.plan.schema import HOST
from einc_runtime.text import did_you_mean

__all__ = ["MAX_SITES", "host_cores", "load_machine", "machine_json", "parse_machine", "preset_names"]


@functools.cache
def preset_names() -> tuple[str, ...]:
    """The names that `load_machine` knows, in ascending order."""
    entries = (resources.files("einc.machines") / "presets").iterdir()
    return tuple(sorted(entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")))


def load_machine(name_or_path: str, sites: int | None = None) -> Machine:
    """A preset, or the machine of a JSON file.

    `sites` is the number of sites of `host` (default: the CPU cores that this process may use); of any other machine
    it keeps the first `sites`. Raises MachineError for an unknown name, a broken file or too many sites, UsageError
    for a file that is not there, ReadError for one that cannot be read.
    """
    if name_or_path in preset_names():
        text = (resources.files("einc.machines") / "presets" / f"{name_or_path}.json").read_text("utf-8")
        if name_or_path == HOST:
            return parse_machine(text, name_or_path, sites=host_cores() if sites is None else sites)
        machine = parse_machine(text, name_or_path)
    else:
        machine = parse_machine(_read(name_or_path), name_or_path)
    if sites is None or sites == len(machine.sites):
        return machine
    if not 1 <= sites < len(machine.sites):
        raise MachineError(f"{machine.name} has {len(machine.sites)} sites, not {sites}")
    return machine.restrict(range(sites))


def host_cores() -> int:
    """The CPU cores that this process may use, at most as many as a machine may have sites."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return min(cores, MAX_SITES)


def _read(path: str) -> str:
    looks_like_file = path.endswith(".json") or "/" in path or os.sep in path or Path(path).exists()
    if not looks_like_file or "\0" in path:
        close = did_you_mean(path, preset_names(), cutoff=0.4)
        known = f"machines: {', '.join(preset_names())}, or a path to a JSON file"
        hint = f"{close} {known}" if close else known
        name, _, sites = path.rpartition(":")
        if name in preset_names() and sites and set(sites) <= set("0123456789,"):  # as `--compare` has it
            hint = f"-m {name} --devices {sites}"
        raise UsageError(f"there is no machine {path[:100]!r}", hint=hint)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_TEXT + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no machine file {path}") from None
    except OSError as error:
        raise ReadError(f"cannot read the machine file {path}: {error.strerror}") from None
    if len(data) > MAX_TEXT:
        raise MachineError(f"the machine file is larger than {MAX_TEXT} bytes", where=path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MachineError(f"the machine file is not UTF-8 text (byte {error.start})", where=path) from None
