"""The safetensors files of a folder: which file has which tensor, by the folder's index where it has one.

An index (`model.safetensors.index.json`) names the file of every tensor; other files in the folder are then none of the
model's. Without one, all .safetensors files count, and their names together must be distinct.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from einc_runtime.errors import ArrayFault, raise_together
from einc_runtime.execution.data.safetensors import SafetensorsFile
from einc_runtime.strict_json import parse_json

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
_MOST_INDEX_BYTES = 64 * 2**20


def open_folder(path: str) -> dict[str, SafetensorsFile]:
    """For every tensor of the folder, its file.

    Raises ArrayFault where a file or the index is broken, or they contradict each other; OSError where one cannot be
    read.
    """
    named = _index(path)
    if named is None:
        return _all_files(path)
    opened = {file: SafetensorsFile(os.path.join(path, file)) for file in sorted(set(named.values()))}
    missing = [name for name, file in named.items() if name not in opened[file].entries]
    raise_together([f"'{name[:100]}' is not in {named[name]}, where the index has it" for name in missing], path)
    return {name: opened[file] for name, file in named.items()}


def stored_names(path: str) -> frozenset[str] | None:
    """The names of all tensors of the folder, or None where it has no safetensors files and no index.

    The index alone is read where there is one, so that its files need not be there.
    """
    named = _index(path, files_needed=False)
    if named is not None:
        return frozenset(named)
    return frozenset(_all_files(path)) if _files(path) else None


def _files(path: str) -> list[Path]:
    return sorted(entry for entry in Path(path).iterdir() if entry.suffix == SUFFIX)


def _all_files(path: str) -> dict[str, SafetensorsFile]:
    files = _files(path)
    if not files:
        raise ArrayFault(f"there is no {SUFFIX} file in this directory", where=path)
    found: dict[str, SafetensorsFile] = {}
    for file in files:
        opened = SafetensorsFile(str(file))
        for name in opened.entries:
            if name in found:
                raise ArrayFault(f"'{name[:100]}' is in another file of the directory, too", where=str(file))
            found[name] = opened
    return found


def _index(path: str, *, files_needed: bool = True) -> Mapping[str, str] | None:
    """The index of the folder: by tensor, the name of its file. None where there is no index."""
    place = os.path.join(path, INDEX)
    if not os.path.lexists(place):
        return None
    if not os.path.isfile(place):
        raise ArrayFault("it is no regular file", where=place)
    with open(place, "rb") as stream:
        data = stream.read(_MOST_INDEX_BYTES + 1)
    if len(data) > _MOST_INDEX_BYTES:
        raise ArrayFault(f"an index of more than {_MOST_INDEX_BYTES // 2**20} MiB", where=place)
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ArrayFault(f"it is no JSON object with distinct names: {error}", where=place) from None
    named = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(named, dict) or not named:
        raise ArrayFault("it has no 'weight_map' that names the file of every tensor", where=place)
    files = {file if isinstance(file, str) else repr(file) for file in named.values()}
    strange = sorted(file for file in files if not _is_plain(file))
    raise_together([f"{file[:100]!r} is no name of a {SUFFIX} file beside it" for file in strange], place)
    if files_needed:
        absent = sorted(file for file in files if not os.path.isfile(os.path.join(path, file)))
        raise_together([f"there is no file {file[:100]}, which the index names" for file in absent], place)
    return named


def _is_plain(file: str) -> bool:
    """Whether this is the name of a file in the folder itself; a path could lead anywhere."""
    return file.endswith(SUFFIX) and file.isprintable() and not set(file) & set("/\\:\0")
