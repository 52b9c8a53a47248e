"""Writes `data/`: tiny random models and what transformers computes with them, for the tests that need no torch.

    make references

The weights depend on the versions of torch and transformers: commit models and results together.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.reference_models import SMALL, greedy, logits, make

DATA = Path(__file__).parent / "data"
DECODERS = ("llama-scaled", "mistral", "qwen2-window", "qwen3-window", "phi3-partial", "gemma", "mixtral", "gemma3")
PROMPTS = [[5, 3, 38, 12, 40, 7, 7], [9, 31, 4]]
COUNT = 10


def main() -> None:
    random = np.random.default_rng(1)
    ids = random.integers(0, SMALL["vocab_size"], (2, 9))
    for name in DECODERS:
        model = make(name, DATA / name, SMALL)
        tokens = [greedy(model, prompt, COUNT) for prompt in PROMPTS]
        np.savez(DATA / name / "expected.npz", ids=ids, logits=logits(model, input_ids=ids), tokens=np.array(tokens))
        (DATA / name / "generation_config.json").unlink()
    model = make("bert-words", DATA / "bert-words", SMALL)
    mask, kinds = np.arange(9) < np.array([[9], [4]]), random.integers(0, 2, (2, 9))
    found = logits(model, input_ids=ids, token_type_ids=kinds, attention_mask=mask.astype(np.int64))
    np.savez(DATA / "bert-words" / "expected.npz", ids=ids, mask=mask, segment=kinds, logits=found)


if __name__ == "__main__":
    main()
