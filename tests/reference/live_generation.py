"""`Generator` against transformers: 64 greedy tokens, for one prompt and five of unequal lengths, on 1, 3, 8 sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from tests.support import reference_models
from tests.support.generation_cases import make_generator

PROMPTS = [np.random.default_rng(n).integers(3, 41, length).tolist() for n, length in enumerate((17, 2, 9, 40, 5))]
COUNT = 64
SIZES = {**reference_models.SMALL, "max_position_embeddings": 128}


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mixtral"])
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = reference_models.make(name, tmp_path / "model", SIZES)
    expected = [reference_models.greedy(model, prompt, COUNT) for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS)
    for sites in (1, 3, 8):
        for prompts, tokens in ((PROMPTS, expected), (PROMPTS[3:4], expected[3:4])):
            generator = make_generator(tmp_path / "model", tmp_path, len(prompts), 112, (8, 16), sites)
            assert [one.tokens for one in generator.generate(prompts, COUNT)] == tokens, sites


def test_the_model_of_stories_is_that_of_transformers(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "models" / "stories"
    model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
    prompts = [[71], [50, 3, 9, 120, 7], [5, 8]]
    expected = [reference_models.greedy(model, prompt, 48) for prompt in prompts]
    for sites in (1, 8):
        generator = make_generator(folder, tmp_path, len(prompts), 64, (8,), sites)
        assert [one.tokens for one in generator.generate(prompts, 48)] == expected, sites
