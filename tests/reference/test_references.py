"""Imported models against what transformers computed with them once: `data/` was written by make_references.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import reference_plans
from tests.support.reference_plans import Array

DATA = Path(__file__).parent / "data"
PROMPTS = [[5, 3, 38, 12, 40, 7, 7], [9, 31, 4]]
SITES = {
    "llama-scaled": (1, 8), "mistral": (5,), "qwen2-window": (3,), "qwen3-window": (7,), "phi3-partial": (6,),
    "gemma": (4,), "mixtral": (3,), "gemma3": (2,),
}  # fmt: skip


def expected(name: str) -> dict[str, Array]:
    with np.load(DATA / name / "expected.npz") as archive:
        return dict(archive)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SITES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = expected(name)
    for sites in SITES[name]:
        found = reference_plans.all_logits(DATA / name, tmp_path, sites, reference["ids"])
        assert np.abs(found - reference["logits"]).max() < 1e-4


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SITES)
def test_prefill_and_decode_steps_find_the_tokens_that_transformers_finds(name: str, tmp_path: Path) -> None:
    tokens = expected(name)["tokens"].tolist()
    sites = SITES[name][-1]
    assert reference_plans.greedy(DATA / name, tmp_path, sites, PROMPTS, len(tokens[0])) == tokens


def test_an_encoder_with_padding_and_segments(tmp_path: Path) -> None:
    reference = expected("bert-words")
    wanted = reference.pop("logits")
    options = ("--segments", "--batch", 2, "--tokens", wanted.shape[1])
    made = reference_plans.session(DATA / "bert-words", tmp_path, 5, *options)
    found = reference_plans.outputs(made, **reference)["logits"]
    assert np.abs(found - wanted)[reference["mask"]].max() < 1e-4
