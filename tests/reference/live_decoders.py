"""Decoders against transformers: the same logits, and the same greedy tokens by prefill and decode; bf16 as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support import reference_models, reference_plans

PROMPTS = [[5, 3, 88, 12, 40, 7, 7, 61, 2], [9, 31, 4, 17, 23]]
COUNT = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("shift", reference_plans.SHIFTS)
@pytest.mark.parametrize("name", reference_models.DECODERS)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    name: str, shift: int, folder: Path, tmp_path: Path
) -> None:
    model = reference_models.make(name, folder / name)
    ids = np.random.default_rng(3).integers(0, 97, (3, 11))
    expected = reference_models.logits(model, input_ids=ids)
    tokens = [reference_models.greedy(model, prompt, COUNT) for prompt in PROMPTS]
    assert len({tuple(t) for t in tokens}) == len(tokens)
    sites = reference_plans.choose_sites(list(reference_models.DECODERS).index(name) + shift)
    found = reference_plans.all_logits(folder / name, tmp_path, sites, ids)
    assert np.abs(found - expected).max() < 1e-4, sites
    assert reference_plans.greedy(folder / name, tmp_path, sites, PROMPTS, COUNT) == tokens, sites


@pytest.mark.parametrize("shift", reference_plans.SHIFTS)
@pytest.mark.parametrize("name", reference_models.FURTHER)
def test_further_families_are_those_of_transformers(name: str, shift: int, folder: Path, tmp_path: Path) -> None:
    small = reference_models.SMALL
    model = reference_models.make(name, folder / name, small)
    ids = np.random.default_rng(3).integers(0, small["vocab_size"], (3, 11))
    expected = reference_models.logits(model, input_ids=ids)
    prompts = [[token % small["vocab_size"] for token in prompt] for prompt in PROMPTS]
    tokens = [reference_models.greedy(model, prompt, 12) for prompt in prompts]
    assert len({tuple(t) for t in tokens}) == len(tokens)
    sites = reference_plans.choose_sites(list(reference_models.FURTHER).index(name) + shift)
    found = reference_plans.all_logits(folder / name, tmp_path, sites, ids)
    assert np.abs(found - expected).max() < 1e-4, sites
    assert reference_plans.greedy(folder / name, tmp_path, sites, prompts, 12) == tokens, sites


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma"])
def test_bf16_is_as_exact_as_it_is_in_transformers(name: str, tmp_path: Path) -> None:
    """Both against f64 with the same weights; the mean error, since the largest depends on luck."""
    model = reference_models.make(name, tmp_path / "wide").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    ids = np.random.default_rng(3).integers(0, 97, (3, 11))
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor(ids)).logits.double().numpy()
    exact = reference_models.logits(model.double(), input_ids=ids)
    ours = reference_plans.all_logits(tmp_path / "half", tmp_path, 3, ids)
    assert np.square(ours - exact).mean() < 1.5 * np.square(theirs - exact).mean()
