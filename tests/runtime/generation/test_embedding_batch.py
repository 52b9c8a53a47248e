"""Texts of an encoder in one batch: each has the vector that it has alone, by the plan of its own length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from einc.generation.encoder_plans import EncoderSource, find_encoder_plans, is_encoder
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.errors import ArrayFault, PlanFault
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.session import Session
from einc_runtime.generation.embedding_batch import EmbeddingBatch
from einc_runtime.generation.generator import open_sessions
from einc_runtime.generation.model_folder import Pooling
from tests.support.encoder_cases import write_encoder
from tests.support.generation_cases import DATA
from tests.support.state_plans import compile_steps


def open_batch(folder: Path, size: int, pooling: Pooling) -> EmbeddingBatch:
    source = EncoderSource((folder / "config.json").read_bytes(), "config.json", "bert",
                           list_stored_names(str(folder)), pooling)  # fmt: skip
    assert source.write_model(1, 1)[1] == 40
    options = CompileOptions(machine="host", devices=1, selector="eindecomp", schedule="naive")
    plans = find_encoder_plans(source, options, PlanCache(folder / "plans"), size, 36, lambda _: None)
    return EmbeddingBatch(open_sessions([plan.bundle for plan in plans], str(folder), "cpu"))


def embed(batch: EmbeddingBatch, rows: dict[int, list[int]]) -> dict[int, np.ndarray]:
    for slot, row in rows.items():
        batch.check(row)
        batch.start(slot, row)
    found: dict[int, np.ndarray] = {}
    while len(found) < len(rows):
        for one in batch.advance():
            assert one.is_last
            assert isinstance(one.result, np.ndarray)
            found[one.slot] = one.result
    assert batch.advance() == []
    return found


def test_vectors_do_not_depend_on_other_texts(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    batch = open_batch(tmp_path, 3, Pooling("mean", True))
    assert (batch.size, batch.width) == (3, 24)
    random = np.random.default_rng(1)
    short, middle, long = ([int(token) for token in random.integers(0, 50, count)] for count in (2, 32, 36))
    alone = [embed(batch, {0: row})[0] for row in (short, middle, long)]
    together = embed(batch, {2: short, 0: long, 1: middle})
    for slot, vector in zip((2, 1, 0), alone, strict=True):
        assert vector.dtype == np.float32
        assert np.abs(together[slot] - vector).max() < 1e-6
        assert abs(float(vector @ vector) - 1) < 1e-5
    assert np.abs(alone[0] - alone[1]).max() > 0.01
    batch.start(1, short)
    batch.end(1)
    assert batch.advance() == []
    for wrong in ([], [0] * 37, [50], [-1]):
        with pytest.raises(ArrayFault, match=r"expected 1 to 36|there are 50 tokens"):
            batch.check(wrong)


def test_what_makes_no_vectors_is_refused() -> None:
    with pytest.raises(PlanFault, match="steps makes no vectors of texts"):
        EmbeddingBatch([Session(compile_steps(1), "cpu")])
    assert is_encoder((DATA / "bert-words" / "config.json").read_bytes(), "config.json")
    assert not is_encoder((DATA / "gemma" / "config.json").read_bytes(), "config.json")
