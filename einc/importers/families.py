"""The families of decoders that can be imported: how they differ, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from einc.importers.common import ACTIVATION_NAMES

Norms = tuple[str | None, str | None, str | None, str | None]
"""The names of a layer's norms: before and after attention, before and after the MLP; None is no norm."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of one MLP.

    `count` experts, of which a token picks `picks`, are the defaults of a configuration. `width` is the field that says
    how wide each expert is. The others are names of a layer's weights, with `*` for the number of an expert.
    """

    count: int
    picks: int
    width: str
    router: str
    gate: str
    up: str
    down: str
    shares: bool | None = True  # the shares of the picked experts add up to 1; None: `norm_topk_prob` says so


@dataclass(frozen=True, slots=True)
class DecoderFamily:
    """What all models of a family have in common, as transformers has it."""

    kind: str
    architecture: str

    # defaults of a configuration
    theta: float = 10000.0
    eps: float = 1e-6
    longest: int = 32768
    tied: bool = False
    activation: str = "silu"
    activation_field: str = "hidden_act"
    heads_kv: int | None = None  # None: as many as heads of queries
    d_head: int | None = None  # None: d_model divided among the heads
    window: int | None = None  # None: no window
    period: int = 0  # one layer in this many sees all keys
    query_scalar: int | None = None  # scores are divided by its root; None: by that of the width of heads
    score_cap: float | None = None  # the soft cap of scores
    final_cap: float | None = None  # the soft cap of logits

    # what the fields mean
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATION_NAMES)
    biases: tuple[str, ...] = ()  # fields that say whether projections have biases
    windows: str = "none"  # which layers have one: none, all, a pattern; used or last need `use_sliding_window`
    local_theta: float | None = None  # theta of layers with a window, if it differs
    caps: bool = False  # there are fields of soft caps
    partial: bool = False  # a part of each head may be rotated
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # fields, each with all its supported values
    harmless: tuple[str, ...] = ()  # fields that change nothing

    # what is computed
    qkv_bias: bool = False  # queries, keys and values have biases in any case
    fused: bool = False  # projections are stacked in one tensor
    offset: float = 0.0  # what was subtracted from the gains of norms before storing them
    scaled: bool = False  # embeddings are multiplied by the root of their width
    experts: Experts | None = None  # in place of one MLP
    some_dense: bool = False  # `decoder_sparse_step` and `mlp_only_layers` say which layers have one MLP nevertheless
    norms: Norms = ("input_layernorm", None, "post_attention_layernorm", None)
    head_norms: str = ""  # queries and keys are normalized before rotation: "each" head, or "all" heads together


_GEMMA_NORMS: Norms = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip

DECODER_FAMILIES = {
    family.kind: family
    for family in (
        DecoderFamily("llama", "LlamaForCausalLM", longest=2048, biases=("attention_bias", "mlp_bias")),
        DecoderFamily("mistral", "MistralForCausalLM", longest=131072, heads_kv=8, windows="all", window=4096),
        DecoderFamily("qwen2", "Qwen2ForCausalLM", heads_kv=32, qkv_bias=True, windows="last", window=4096),
        DecoderFamily(
            "qwen3", "Qwen3ForCausalLM", heads_kv=32, d_head=128, biases=("attention_bias",), windows="last",
            window=4096, head_norms="each",
        ),
        DecoderFamily(
            "phi3", "Phi3ForCausalLM", eps=1e-5, longest=4096, windows="all", partial=True, fused=True,
            harmless=("embd_pdrop", "original_max_position_embeddings", "resid_pdrop"),
        ),
        DecoderFamily(
            "gemma", "GemmaForCausalLM", longest=8192, heads_kv=16, d_head=256, tied=True, biases=("attention_bias",),
            activation="gelu_pytorch_tanh", activations=ACTIVATION_NAMES | {"gelu": "gelu_tanh"},
            offset=1.0, scaled=True,
            only={"use_bidirectional_attention": (False,)},
        ),
        DecoderFamily(
            "mixtral", "MixtralForCausalLM", theta=1e6, eps=1e-5, longest=131072, heads_kv=8, windows="all",
            experts=Experts(
                8, 2, "intermediate_size", "block_sparse_moe.gate.weight", "block_sparse_moe.experts.*.w1.weight",
                "block_sparse_moe.experts.*.w3.weight", "block_sparse_moe.experts.*.w2.weight",
            ),
            harmless=("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
        ),
        DecoderFamily(
            "qwen3_moe", "Qwen3MoeForCausalLM", heads_kv=4, biases=("attention_bias",), windows="used", window=4096,
            experts=Experts(
                128, 8, "moe_intermediate_size", "mlp.gate.weight", "mlp.experts.*.gate_proj.weight",
                "mlp.experts.*.up_proj.weight", "mlp.experts.*.down_proj.weight", shares=None,
            ),
            head_norms="each", some_dense=True,
            harmless=("intermediate_size", "output_router_logits", "router_aux_loss_coef"),
        ),
        DecoderFamily(
            "gemma2", "Gemma2ForCausalLM", longest=8192, heads_kv=4, d_head=256, tied=True,
            activation="gelu_pytorch_tanh", activation_field="hidden_activation", windows="pattern", window=4096,
            period=2, query_scalar=256, biases=("attention_bias",), caps=True, score_cap=50.0, final_cap=30.0,
            offset=1.0, scaled=True, norms=_GEMMA_NORMS, only={"use_bidirectional_attention": (False,)},
        ),
        DecoderFamily(
            "gemma3_text", "Gemma3ForCausalLM", theta=1e6, local_theta=1e4, longest=131072, heads_kv=4, d_head=256,
            tied=True, activation="gelu_pytorch_tanh", activation_field="hidden_activation", windows="pattern",
            window=4096, period=6, query_scalar=256, biases=("attention_bias",), caps=True, offset=1.0, scaled=True,
            norms=_GEMMA_NORMS, head_norms="each",
            only={"attn_logit_softcapping": (None,), "use_bidirectional_attention": (False,)},
        ),
        DecoderFamily(
            "olmo2", "Olmo2ForCausalLM", eps=1e-5, longest=2048, biases=("attention_bias",), head_norms="all",
            norms=(None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        ),
    )
}  # fmt: skip
