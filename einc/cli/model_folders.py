"""Reads what the importers need of a published model: a folder, or a GGUF file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from einc.data import find_folder
from einc.errors import ReadError, UsageError
from einc_runtime.cli import files
from einc_runtime.errors import UsageFault
from einc_runtime.text import did_you_mean, quote_names

CONFIGURATION = "config.json"


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The bytes of a model's configuration, what names it in messages, what the model is called, and the names of its
    stored tensors, None where it has none."""

    config: bytes
    where: str
    name: str
    stored: frozenset[str] | None


def list_known_models() -> dict[str, Path]:
    """The folders of well-known models that come with einc, by name: configurations without weights."""
    return {folder.name: folder for folder in sorted(find_folder("models").joinpath("published").iterdir())}


def find_model_folder(path: str) -> str:
    """The path, or the folder of the well-known model that it names where no file does: `llama-3.1-70b`, or as hubs
    name it, `meta-llama/Llama-3.1-70B-Instruct`."""
    if os.path.lexists(path):
        return path
    known = list_known_models()
    folder = known.get(path.rpartition("/")[2].lower().removesuffix("-instruct"))
    return path if folder is None else str(folder)


def read_published_model(path: str) -> PublishedModel:
    """What the importers need of the folder or GGUF file at a path, or of a well-known model."""
    from einc_runtime.execution.data.gguf_file import GGUF_SUFFIX, is_gguf
    from einc_runtime.execution.data.safetensors import list_stored_names

    shown, path = path, find_model_folder(path)
    _require_model(path)
    name = os.path.basename(os.path.abspath(path))
    with files.reading(path):
        if is_gguf(path):
            return _read_gguf(path, name.removesuffix(GGUF_SUFFIX))
    config = read_configuration(path)
    with files.reading(path):
        return PublishedModel(config, os.path.join(shown, CONFIGURATION), name, list_stored_names(path))


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


def _require_model(path: str) -> None:
    """Raises UsageError where there is nothing at a path."""
    try:
        files.require_present(path, or_folder=True)
    except UsageFault as fault:
        names = list(list_known_models())
        meant = [name for name in names if _keep_letters(name).startswith(_keep_letters(path))] if path else []
        near = did_you_mean(path, names)
        hint = near if near and not meant else f"well-known models have names: {quote_names(meant or names, 12)}"
        raise UsageError(fault.message, where=path, hint=hint) from None


def _keep_letters(name: str) -> str:
    """A name without what people leave out of it: `llama3` is the beginning of `llama-3.1-8b`."""
    return "".join(filter(str.isalnum, name.lower()))


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
