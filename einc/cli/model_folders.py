"""Reads what the importers need of a published model: a folder, or a GGUF file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from einc.errors import ReadError, UsageError
from einc_runtime.cli import files

CONFIGURATION = "config.json"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The bytes of a model's configuration, what names it in messages, what the model is called, and the names of its
    stored tensors, None where it has none."""

    config: bytes
    where: str
    name: str
    stored: frozenset[str] | None


def read_published_model(path: str) -> PublishedModel:
    """What the importers need of the folder or GGUF file at a path."""
    from einc_runtime.execution.data.gguf_file import GGUF_SUFFIX, is_gguf
    from einc_runtime.execution.data.safetensors import list_stored_names

    files.require_present(path, or_folder=True)
    name = os.path.basename(os.path.abspath(path))
    with files.reading(path):
        if is_gguf(path):
            return _read_gguf(path, name.removesuffix(GGUF_SUFFIX))
    config = read_configuration(path)
    with files.reading(path):
        return PublishedModel(config, os.path.join(path, CONFIGURATION), name, list_stored_names(path))


def read_configuration(folder: str) -> bytes:
    """The bytes of the folder's config.json, at most one more than a configuration may have."""
    from einc.importers.config import MAX_CONFIG_BYTES

    files.require_present(folder, or_folder=True)
    path = os.path.join(folder, CONFIGURATION)
    if not os.path.isdir(folder):
        raise UsageError("expected a folder with a config.json, or a GGUF file", where=folder)
    files.require_present(path)
    with files.reading(path):
        if not os.path.isfile(path):
            raise ReadError("cannot read: it is not a regular file", where=path)
        with open(path, "rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)


def _read_gguf(path: str, name: str) -> PublishedModel:
    from einc.importers.gguf import ROTATION_TENSORS, GgufDescription, describe_configuration
    from einc_runtime.execution.data.gguf_blocks import DENSE_TYPES, WIDENING
    from einc_runtime.execution.data.gguf_file import GgufFile
    from einc_runtime.execution.data.gguf_weights import read_factors, view_gguf

    file = GgufFile(path)
    stored = frozenset(view_gguf(file).names)
    tensors = {tensor: (entry.type, entry.shape) for tensor, entry in file.tensors.items()}
    factors = {tensor: read_factors(file, tensor) for tensor in ROTATION_TENSORS if tensor in file.tensors}
    description = GgufDescription(file.metadata, tensors, stored, factors, {*DENSE_TYPES, *WIDENING})
    config = describe_configuration(description, path)
    return PublishedModel(config, path, name, stored)
