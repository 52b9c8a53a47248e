"""Reads what the importers need of a published model's folder, and writes the folder of an imported one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from einc.errors import ReadError, UsageError
from einc_runtime.cli import files
from einc_runtime.errors import WriteFault

if TYPE_CHECKING:
    from einc_runtime.dtypes import Array

CONFIGURATION = "config.json"
MODEL_TEXT = "model.ein"
WEIGHTS = "model.safetensors"


def read_configuration(folder: str) -> bytes:
    """The bytes of the folder's config.json, at most one more than a configuration may have."""
    from einc.importers.config import MAX_CONFIG_BYTES

    files.require_present(folder, or_folder=True)
    path = os.path.join(folder, CONFIGURATION)
    if not os.path.isdir(folder):
        raise UsageError("expected a folder with a config.json", where=folder)
    files.require_present(path)
    with files.reading(path):
        if not os.path.isfile(path):
            raise ReadError("cannot read: it is not a regular file", where=path)
        with open(path, "rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)


def read_stored_names(folder: str) -> frozenset[str] | None:
    """The names of all tensors in the folder's safetensors files, None if it has none."""
    from einc_runtime.execution.data.safetensors import list_stored_names

    with files.reading(folder):
        return list_stored_names(folder)


def write_model_folder(target: str, text: str, weights: Mapping[str, Array]) -> None:
    """Writes a new folder with a model text and its weights, whole or not at all.

    Raises UsageError where there is something already, and WriteFault.
    """
    from einc.importers.arrays.element_types import find_element_type
    from einc_runtime.execution.data.safetensors import write_tensors

    require_new(target)
    types = {name: find_element_type(array.dtype) for name, array in weights.items()}
    tensors = {name: (known.carrier.value, weights[name]) for name, known in types.items() if known is not None}
    destination = Path(target).absolute()
    temporary = destination.parent / f".einc-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        temporary.mkdir()
        (temporary / MODEL_TEXT).write_text(text, encoding="utf-8")
        if tensors:
            with open(temporary / WEIGHTS, "xb") as stream:
                write_tensors(stream, tensors)
        os.rename(temporary, destination)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise WriteFault(f"cannot write: {error.strerror or error}", where=target) from None
        raise


def require_new(target: str) -> None:
    if os.path.lexists(target):
        raise UsageError("there is something of this name already", where=target, hint="name a new folder")
