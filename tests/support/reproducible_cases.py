"""Models in small for reproducible plans, by their batch, and the hash of what a plan puts out."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from einc.compiler import compile_model
from einc.importers.common import ImportRequest
from einc.importers.hf import import_hf
from einc.options import CompileOptions
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from tests.support.import_configs import LLAMA
from tests.support.plan_arrays import arrays_of, results

FOLDER = Path(__file__).parents[2] / "models"
_LAYERS = {"n_layers": 2, "d_model": 160, "heads_q": 10, "heads_kv": 5, "d_head": 16, "d_ff": 300, "vocab": 211}
SIZES: Mapping[str, Mapping[str, int | str]] = {
    "bert": {"batch": "{batch}", "length": 19, "n_layers": 2, "d_model": 96, "heads": 6, "d_ff": 300, "vocab": 211,
             "positions": 32},
    **{f"chain_{letter}": {"scale": 64, "ends": "{batch} * 5"} for letter in "abde"},
    "chain_c": {"scale": 64, "rows": "{batch} * 5"},
    "digits": {"images": "{batch} * 3"},
    "ffn": {"tokens": "{batch} * 4", "d_model": 300, "d_ff": 530},
    "llama": {**_LAYERS, "batch": "{batch}", "length": 33},
    "llama_block": {key: value for key, value in _LAYERS.items() if key not in ("n_layers", "vocab")}
    | {"seq_lens": "[37, 260] * {batch}"},
    "llama_decode": {**_LAYERS, "batch": "{batch}", "cache": 30},
    "moe": {"tokens": "{batch} * 2", "d_model": 96, "d_ff": 270, "experts": 6},
}  # fmt: skip
"""Extents that p does not divide, and more positions of k than one tile goes through at a time."""

IMPORTED = "imported"


def read_text(model: str, batch: int) -> str:
    """The text of a model, or of a decoder that is imported."""
    if model != IMPORTED:
        return (FOLDER / f"{model}.ein").read_text()
    config = json.dumps(LLAMA | {"hidden_size": 96, "intermediate_size": 270}).encode()
    return import_hf(config, "config.json", IMPORTED, ImportRequest(batch=batch, tokens=21), None).text


def compile_case(model: str, sites: int, batch: int, dtype: str | None = None, **options: object):
    definitions = tuple((name, str(value).format(batch=batch)) for name, value in SIZES.get(model, {}).items())
    chosen = {"machine": "host", "devices": sites, "dtype": dtype, "definitions": definitions, "reproducible": True}
    return compile_model(read_text(model, batch), f"{model}.ein", CompileOptions(**(chosen | options))).bundle


def hash_outputs(bundle, workers: int = 2, seed: int = 0, **arrays: np.ndarray) -> str:
    """The hash of all outputs of a run in a random order of tasks, in memory that was filled with NaNs."""
    draw = random.Random(workers + len(bundle.tasks))
    executor = CpuExecutor(bundle, workers, poison=True, ranks=[draw.random() for _ in bundle.tasks])
    session = Session(bundle, executor=executor)
    outputs = results(session, arrays_of(bundle, seed, **arrays))
    digest = hashlib.sha256()
    for name, array in sorted(outputs.items()):
        assert array.dtype.kind in "ib" or np.isfinite(array.astype(np.float64)).all(), name
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
