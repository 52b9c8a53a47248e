"""The families of decoders that can be imported: in what they differ, and what a configuration may leave unsaid."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """What all models of a family have in common, as transformers has it.

    Defaults: `theta`, `longest`, `heads_kv` (None is as many as heads of queries) and `d_head` (None is d_model divided
    among the heads). `biases` are the fields that say whether projections have biases; with `qkv_bias` those of
    queries, keys and values have them in any case. `windows` are the layers with a sliding window: none, all, or the
    last. With `head_norms` each head of queries and keys is normalized before it is turned.
    """

    kind: str
    architecture: str
    theta: float = 10000.0
    longest: int = 32768
    heads_kv: int | None = None
    d_head: int | None = None
    biases: tuple[str, ...] = ()
    qkv_bias: bool = False
    windows: str = "none"
    head_norms: bool = False


FAMILIES = {
    family.kind: family
    for family in (
        Family("llama", "LlamaForCausalLM", longest=2048, biases=("attention_bias", "mlp_bias")),
        Family("mistral", "MistralForCausalLM", longest=131072, heads_kv=8, windows="all"),
        Family("qwen2", "Qwen2ForCausalLM", heads_kv=32, qkv_bias=True, windows="last"),
        Family(
            "qwen3", "Qwen3ForCausalLM", heads_kv=32, d_head=128, biases=("attention_bias",), windows="last",
            head_norms=True,
        ),
    )
}  # fmt: skip
