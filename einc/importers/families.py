"""The families of decoders that can be imported: in what they differ, and what a configuration may leave unsaid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """What all models of a family have in common, as transformers has it.

    Defaults: `theta`, `eps`, `longest`, `heads_kv` (None is as many as heads of queries), `d_head` (None is d_model
    divided among the heads) and `window` (None is no window). `biases` are the fields that say whether projections have
    biases; with `qkv_bias` those of queries, keys and values have them in any case. `windows` are the layers that a
    sliding window is for: none, all, or the last. With `head_norms` each head of queries and keys is normalized before
    it is turned; where turning is `partial`, a configuration may leave the rest of each head as it is. `fused`
    projections stand under each other in one tensor. `absent` are fields that may say only that there is none of what
    they ask for, `harmless` ones change nothing.
    """

    kind: str
    architecture: str
    theta: float = 10000.0
    eps: float = 1e-6
    longest: int = 32768
    heads_kv: int | None = None
    d_head: int | None = None
    biases: tuple[str, ...] = ()
    qkv_bias: bool = False
    windows: str = "none"
    window: int | None = None
    head_norms: bool = False
    partial: bool = False
    fused: bool = False
    absent: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()


FAMILIES = {
    family.kind: family
    for family in (
        Family("llama", "LlamaForCausalLM", longest=2048, biases=("attention_bias", "mlp_bias")),
        Family("mistral", "MistralForCausalLM", longest=131072, heads_kv=8, windows="all", window=4096),
        Family("qwen2", "Qwen2ForCausalLM", heads_kv=32, qkv_bias=True, windows="last", window=4096),
        Family(
            "qwen3", "Qwen3ForCausalLM", heads_kv=32, d_head=128, biases=("attention_bias",), windows="last",
            window=4096, head_norms=True,
        ),
        Family(
            "phi3", "Phi3ForCausalLM", eps=1e-5, longest=4096, windows="all", partial=True, fused=True,
            absent=("attention_bias", "mlp_bias", "lm_head_bias"),
            harmless=("embd_pdrop", "resid_pdrop", "original_max_position_embeddings"),
        ),
    )
}  # fmt: skip
