"""Plans that were compiled before, as ordinary plan files in a folder: named by what they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from einc.compiler import compile_model, select_target
from einc.logical.pins import Pin
from einc.machines.load import format_machine
from einc.options import CompileOptions
from einc.plan_report import REPORT_VERSION
from einc_runtime.disk import user_cache, write_file
from einc_runtime.errors import ReportedError
from einc_runtime.plan.codec import encode, read_bundle
from einc_runtime.plan.schema import SCHEMA_VERSION, Bundle
from einc_runtime.version import VERSION

MAX_CACHED_PLANS = 400
"""Plans that are kept; if there are more, the older half of them is removed."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan, its file (None where it could not be written), and whether it was compiled just now."""

    bundle: Bundle
    file: Path | None
    is_new: bool


def find_cache_folder() -> Path:
    """The folder of plans in the user's cache folder."""
    return user_cache("plans")


class PlanCache:
    """Compiles a model text, or finds the plan that the same text, options, machine and versions gave before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, text: str, name: str, options: CompileOptions, phase: Callable[[str], None]) -> KeptPlan:
        """The plan of a model text; `name` stands in messages, and in the name of the file.

        A file that is no valid plan is compiled again. A folder that cannot be used only costs time.
        """
        file = self._folder / f"{name}-{hash_request(text, options)[:32]}.bin"
        with contextlib.suppress(OSError, ReportedError):
            return KeptPlan(read_bundle(str(file)), file, False)
        bundle = compile_model(text, f"{name}.ein", options, phase).bundle
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(file, lambda stream: stream.write(encode(bundle)))
            self._forget()
        except OSError:
            return KeptPlan(bundle, None, True)
        return KeptPlan(bundle, file, True)

    def _forget(self) -> None:
        """Removes the older half where there are too many. Another process may do the same at this time."""
        files = [path for path in self._folder.iterdir() if path.suffix == ".bin"]
        if len(files) <= MAX_CACHED_PLANS:
            return
        ages = {}
        for path in files:
            with contextlib.suppress(OSError):
                ages[path] = path.stat().st_mtime_ns
        for path in sorted(ages, key=lambda file: (ages[file], file.name))[: len(ages) // 2]:
            with contextlib.suppress(OSError):
                path.unlink()


def hash_request(text: str, options: CompileOptions) -> str:
    """A hash of everything that decides what the plan is, the machine's description included."""
    target = select_target(options)
    pins = [(pin.pattern, pin.cut) for pin in options.pins if isinstance(pin, Pin)]
    described = [
        VERSION,
        SCHEMA_VERSION,
        REPORT_VERSION,
        text,
        format_machine(target.machine),
        target.devices,
        pins,
        *(getattr(options, field) for field in ("definitions", "preset", "dtype", "selector", "schedule", "seed")),
        options.reproducible,
        None if options.step is None else (options.step.dimension, options.step.tokens),
        *(["priced"] if pins and options.price_pins else []),
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
