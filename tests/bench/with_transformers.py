"""The same LLaMA in transformers, from its configuration: a step over full caches of zeros, or a prompt."""

from __future__ import annotations

import torch
import transformers

from einc_runtime.plan.schema import Bundle
from tests.bench.inputs import LlamaShape, constants, drawn
from tests.bench.with_torch import as_tensor


def prepared(bundle: Bundle, threads: int):
    torch.set_num_threads(threads)
    s, given = LlamaShape.of(bundle), drawn(bundle, weights=False)
    model = _make_model(bundle, s)
    ids = torch.from_numpy(given["ids"]).reshape(s.batch, s.tokens)
    cache = None
    if s.cache:
        cache = transformers.DynamicCache()
        zeros = torch.zeros(s.batch, s.heads_kv, s.cache - 1, s.d_head, dtype=model.dtype)
        for layer in range(s.layers):
            cache.update(zeros, zeros, layer)
    result = None

    def run() -> None:
        nonlocal result
        with torch.inference_mode():
            result = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            if cache is not None:
                cache.crop(-s.tokens)

    return run, lambda: result.float().numpy()[:, -1]


def _make_model(bundle: Bundle, s: LlamaShape) -> transformers.LlamaForCausalLM:
    shapes, numbers = {tensor.name: tensor.shape for tensor in bundle.tensors}, constants(bundle)
    vocab, width = shapes["table"]
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=shapes["layer.0.w_gate"][0], num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.heads_kv, head_dim=s.d_head, rms_norm_eps=numbers["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": numbers["theta"]}, tie_word_embeddings=False,
        max_position_embeddings=max(s.cache, s.tokens), attn_implementation="sdpa",
    )  # fmt: skip
    arrays = drawn(bundle)
    weights = {one.stored: as_tensor(arrays[one.name]) for one in bundle.tensors if one.kind == "weight"}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    held = model.state_dict()
    model.load_state_dict({name: array.reshape(held[name].shape) for name, array in weights.items()}, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval()
