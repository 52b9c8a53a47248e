"""Archives of `torch.export.save` that are put together from committed JSON, without torch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from einc.importers.pytorch.archive import SCALAR_TYPES

FOLDER = Path(__file__).parents[1] / "importers" / "data" / "torch"
CASES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))
Elements = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class TorchCase:
    """An exported graph: the JSON of its archive, its inputs, and what torch computed of them."""

    documents: Mapping[str, Any]
    inputs: tuple[Elements, ...]
    outputs: tuple[Elements, ...]


def load_case(name: str) -> TorchCase:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    return TorchCase(
        {entry: content[entry] for entry in ("model", "weights", "constants")},
        tuple(np.array(item["elements"], item["type"]) for item in content["inputs"]),
        tuple(np.array(item["elements"], item["type"]) for item in content["outputs"]),
    )


def draw_weight(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Elements:
    """The elements of a weight, which follow from its name; variances are positive."""
    rng = np.random.default_rng(list(name.encode()))
    if dtype.kind in "ib":
        return rng.integers(0, 2, shape).astype(dtype)
    drawn = 0.4 * rng.standard_normal(shape)
    return np.asarray(np.abs(drawn) + 0.5 if name.endswith("var") else drawn).astype(dtype)


def list_entries(documents: Mapping[str, Any]) -> dict[str, bytes]:
    """The entries of an archive by their names below its folder."""
    entries = {"models/model.json": json.dumps(documents["model"]).encode(), "byteorder": b"little"}
    for kind in ("weights", "constants"):
        config = documents[kind]
        entries[f"data/{kind}/model_{kind}_config.json"] = json.dumps(config).encode()
        for name, payload in config["config"].items():
            meta = payload["tensor_meta"]
            shape = tuple(size["as_int"] for size in meta["sizes"])
            weight = draw_weight(name, shape, SCALAR_TYPES[meta["dtype"]].numpy)
            entries[f"data/{kind}/{payload['path_name']}"] = weight.tobytes()
    return entries


def write_archive(path: Path, entries: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}"), data, compression)
