"""The families of decoders that can be imported: in what they differ, and what a configuration may leave unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from einc.importers.common import ACTIVATIONS


@dataclass(frozen=True, slots=True)
class Family:
    """What all models of a family have in common, as transformers has it."""

    kind: str
    architecture: str

    # what holds where a configuration says nothing
    theta: float = 10000.0
    eps: float = 1e-6
    longest: int = 32768
    tied: bool = False
    activation: str = "silu"
    heads_kv: int | None = None  # as many as heads of queries
    d_head: int | None = None  # d_model divided among the heads
    window: int | None = None  # no window

    # what the fields mean
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    biases: tuple[str, ...] = ()  # fields that say whether projections have biases
    windows: str = "none"  # the layers that a window is for: none, all, or the last
    partial: bool = False  # a part of each head may be turned
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # fields with all that they may say
    harmless: tuple[str, ...] = ()  # fields that change nothing

    # what is computed
    qkv_bias: bool = False  # queries, keys and values have biases in any case
    fused: bool = False  # projections stand under each other in one tensor
    offset: float = 0.0  # gains of norms are stored less this
    scaled: bool = False  # embeddings are multiplied by the root of their width
    head_norms: bool = False  # each head of queries and keys is normalized before it is turned


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
            only={"attention_bias": (False,), "mlp_bias": (False,), "lm_head_bias": (False,)},
            harmless=("embd_pdrop", "resid_pdrop", "original_max_position_embeddings"),
        ),
        Family(
            "gemma", "GemmaForCausalLM", longest=8192, heads_kv=16, d_head=256, tied=True, biases=("attention_bias",),
            activation="gelu_pytorch_tanh", activations=ACTIVATIONS | {"gelu": "gelu_tanh"}, offset=1.0, scaled=True,
            only={"hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False,)},
        ),
    )
}  # fmt: skip
