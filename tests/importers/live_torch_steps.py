"""Decode steps of tiny models of transformers: exported, imported, derived, and run token after token.

Each step has the logits that the module has for the text up to its token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import einc
from einc_runtime import Session

TOKENS = 12
SMALL: dict[str, Any] = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48, "vocab_size": 50,
    "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2": {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 50, "n_positions": 16, "bos_token_id": 1,
             "eos_token_id": 2},
    "OPT": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "GPTNeoX": SMALL, "Phi": GROUPED, "Cohere": GROUPED, "Falcon": {**SMALL, "alibi": False}, "Starcoder2": GROUPED,
    "Olmo2": GROUPED, "Granite": GROUPED,
}  # fmt: skip


class Logits(torch.nn.Module):
    """A model without its own caches."""

    def __init__(self, family: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
        self.model = transformers.AutoModelForCausalLM.from_config(config).eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_have_the_logits_of_the_module(family: str) -> None:
    module = Logits(family)
    ids = torch.randint(0, 50, (1, TOKENS))
    with torch.no_grad():
        expected = module(ids)[0].numpy()
    model = einc.from_torch(module, (ids,))
    plan = einc.compile(model, "host", 1, step={f"n{TOKENS}": 1})
    session = Session(plan.bundle, backend="cpu")
    session.load_weights(model.weights)
    (name,) = model.inputs
    for position in range(TOKENS):
        inputs = {name: ids[:, position : position + 1].numpy(), "positions": np.array([position])}
        logits = session.run(inputs)[model.outputs[0]]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(logits.reshape(-1), expected[position], rtol=0, atol=2e-5 * scale)
