"""Reads what the importers need of a published model's folder."""

from __future__ import annotations

import os

from einc.errors import ReadError, UsageError
from einc_runtime.cli import files

CONFIGURATION = "config.json"


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
