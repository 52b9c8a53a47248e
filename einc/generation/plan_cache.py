"""Plans that were compiled before, as ordinary plan files in a folder: named by what they were made from.

Texts of models that transformers builds, which takes seconds, are kept beside them.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einc.compiler import compile_model
from einc.importers.hf import ImportedModel
from einc.importers.pytorch.published import NEEDED_PACKAGES
from einc.logical.pins import Pin
from einc.machines.load import format_machine
from einc.options import CompileOptions
from einc.plan_report import REPORT_VERSION
from einc.target import select_target
from einc_runtime.dtypes import find_dtype_name, storage_dtype
from einc_runtime.errors import ReportedError
from einc_runtime.plan.codec import MAX_PAYLOAD_BYTES, encode, read_bundle
from einc_runtime.plan.schema import SCHEMA_VERSION, Bundle
from einc_runtime.remembered import RememberedFiles, find_user_folder
from einc_runtime.version import VERSION

if TYPE_CHECKING:
    from einc.importers.arrays.values import Elements

MAX_CACHED_PLANS = 400
"""Files that are kept; if there are more, the older half of them is removed."""

MAX_CACHED_BYTES = 2 * MAX_PAYLOAD_BYTES
"""Of a file: more than any plan takes, with what stands around it."""


class ModelSource(Protocol):
    """What a model is imported from (`decoder_plans.DecoderSource`)."""

    @property
    def config(self) -> bytes: ...

    @property
    def name(self) -> str: ...

    @property
    def stored(self) -> frozenset[str] | None: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...

    @property
    def is_exported(self) -> bool:
        """Whether transformers builds it, which takes seconds."""

    def find_longest(self) -> int: ...

    def write_model(self, places: int) -> ImportedModel: ...


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A plan, its file (None where it could not be written), and whether it was compiled just now."""

    bundle: Bundle
    file: Path | None
    is_new: bool


def find_cache_folder() -> Path:
    """The folder of plans in the user's cache folder."""
    return find_user_folder("plans")


class PlanCache:
    """Compiles a model text, or finds the plan that the same text, options, machine and versions gave before."""

    def __init__(self, folder: Path) -> None:
        self._files = RememberedFiles(folder, MAX_CACHED_PLANS, MAX_CACHED_BYTES)

    def get(self, text: str, name: str, options: CompileOptions, phase: Callable[[str], None]) -> KeptPlan:
        """The plan of a model text; `name` stands in messages, and in the name of the file.

        A file that is no valid plan is compiled again. A folder that cannot be used only costs time.
        """
        file = f"{name}-{hash_request(text, options)[:32]}.bin"
        with contextlib.suppress(OSError, ReportedError):  # the folder may be one that users share
            path = self._files.folder / file
            return KeptPlan(read_bundle(str(path)), path, False)
        bundle = compile_model(text, f"{name}.ein", options, phase).bundle
        return KeptPlan(bundle, self._files.write(file, encode(bundle)), True)

    def find_longest(self, source: ModelSource) -> int:
        """How many tokens a text may have."""
        return int(self._keep(source, "longest", lambda: {"longest": source.find_longest()})["longest"])

    def get_model(self, source: ModelSource, places: int) -> ImportedModel:
        """The model that reads so many tokens of a sequence."""
        imports: list[ImportedModel] = []

        def make() -> dict[str, Any]:
            imports.append(source.write_model(places))
            fields = imports[0]
            arrays = {name: _write_array(array) for name, array in fields.constants.items()}
            return {"architecture": fields.architecture, "text": fields.text, "longest": fields.longest,
                    "notes": list(fields.notes), "constants": arrays}  # fmt: skip

        kept = self._keep(source, f"model-{places}", make)
        if imports:
            return imports[0]
        constants = {name: _read_array(text) for name, text in kept["constants"].items()}
        return ImportedModel(kept["architecture"], kept["text"], tuple(kept["notes"]), kept["longest"], constants)

    def _keep(self, source: ModelSource, about: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `make` gives, or gave before for the same model and versions."""
        if not source.is_exported:
            return make()
        file = f"{hash_source(source, about)[:32]}.json"
        with contextlib.suppress(OSError, ValueError):
            kept: dict[str, Any] = json.loads((self._files.folder / file).read_bytes())
            return kept
        kept = make()
        self._files.write(file, json.dumps(kept).encode())
        return kept


def hash_source(source: ModelSource, about: str) -> str:
    """A hash of everything that decides what is made of a model that transformers builds."""
    described = [
        VERSION, *map(_find_version, NEEDED_PACKAGES), source.config.hex(), source.name, source.stored is None,
        sorted(source.stored or ()), source.ignored, about,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _find_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _write_array(array: Elements) -> dict[str, Any]:
    bytes_ = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"type": find_dtype_name(array.dtype), "shape": array.shape, "bytes": bytes_}


def _read_array(kept: Mapping[str, Any]) -> Elements:
    flat = np.frombuffer(base64.b64decode(kept["bytes"]), storage_dtype(kept["type"]))
    return flat.reshape(kept["shape"])


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
        None if options.step is None else dataclasses.astuple(options.step),
        *([options.objective, options.stages, options.microbatches, options.replicas] if options.divides else []),
        *(["priced"] if pins and options.price_pins else []),
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
