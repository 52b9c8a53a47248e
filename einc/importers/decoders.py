"""Decoders of the Llama family: what their configurations describe."""

from __future__ import annotations

from dataclasses import dataclass

from einc.importers.common import MAX_EXTENT, MAX_LAYERS, MAX_POSITIONS, read_element_type, refuse_other_forms
from einc.importers.config import ConfigFields
from einc.importers.families import DECODER_FAMILIES, DecoderFamily
from einc.importers.quantization import Quantization, read_quantization
from einc.importers.rotary import RotaryEmbedding, read_rotary
from einc_runtime.strict_json import describe_json

DECODER_ARCHITECTURES = {family.architecture: kind for kind, family in DECODER_FAMILIES.items()}
MAX_BITS = 62
"""Layers of a pattern, which stands in a text as the bits of an integer."""
ENCODER_OPTIONS = ("pool", "normalize", "segments")
"""Options of a request that mean nothing for a decoder."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's numbers."""

    family: DecoderFamily
    dtype: str
    n_layers: int
    d_model: int
    heads_q: int
    heads_kv: int
    d_head: int
    d_ff: int
    experts: int  # 0 where each layer has one MLP
    picks: int  # experts of a token
    shares: bool  # whether the weights of those that a token picks add up to 1
    vocab: int
    eps: float
    activation: str
    rotary: RotaryEmbedding
    scale: float | None  # the factor of scores; None if it follows from the width of heads
    score_cap: float | None  # the soft cap of scores
    final_cap: float | None  # the soft cap of logits
    window: int  # how many keys a query sees in local layers; 0 is no window
    local: str  # an expression that is 1 in layer i if it is local, and else 0; empty where all layers are alike
    biases: frozenset[str]  # those of the family's bias fields that are true
    tied: bool
    longest: int
    quantization: Quantization | None = None
    dense_layers: tuple[int, ...] = ()
    dense: str = ""  # an expression that is 1 in layer i if it has one MLP among layers with experts; empty: none has
    d_dense: int = 1  # the width of such an MLP

    @property
    def flat_heads(self) -> bool:
        """Whether the results of heads are one dimension for the projection after attention."""
        return self.quantization is not None and self.quantization.splits_heads(self.d_head)

    @property
    def qkv_bias(self) -> bool:
        return self.family.qkv_bias or "attention_bias" in self.biases


def read_decoder(fields: ConfigFields, kind: str) -> Decoder:
    """The decoder that a configuration describes; problems are noted in the fields."""
    family = DECODER_FAMILIES[kind]
    d_model = fields.integer("hidden_size", MAX_EXTENT)
    heads_q = fields.integer("num_attention_heads", MAX_EXTENT)
    default_kv = heads_q if fields.is_null("num_key_value_heads") else family.heads_kv or heads_q
    heads_kv = fields.integer("num_key_value_heads", MAX_EXTENT, default_kv)
    if heads_q % heads_kv:
        fields.fail(f"num_attention_heads: expected a multiple of the {heads_kv} num_key_value_heads, found {heads_q}")
    d_head = _read_head_width(fields, family, d_model, heads_q)
    n_layers = fields.integer("num_hidden_layers", MAX_LAYERS)
    longest = fields.integer("max_position_embeddings", MAX_POSITIONS, family.longest)
    experts, picks, shares = _read_experts(fields, family)
    window, local = _read_window(fields, family, n_layers)
    dense_layers = _read_dense(fields, n_layers) if family.some_dense else ()
    refuse_other_forms(fields)
    for name, values in family.only.items():
        fields.require(name, values, f"in a {family.kind} model it is {describe_json(values[0])}")
    fields.value(*family.harmless)
    d_ff = fields.integer(family.experts.width if family.experts else "intermediate_size", MAX_EXTENT)
    return Decoder(
        family=family,
        dtype=read_element_type(fields),
        n_layers=n_layers,
        d_model=d_model,
        heads_q=heads_q,
        heads_kv=heads_kv,
        d_head=d_head,
        d_ff=d_ff,
        experts=experts,
        picks=picks,
        shares=shares,
        vocab=fields.integer("vocab_size", MAX_POSITIONS),
        eps=fields.real("rms_norm_eps", family.eps, maximum=1.0),
        activation=fields.choice(family.activation_field, family.activations, family.activation),
        rotary=read_rotary(fields, family, d_head, longest),
        scale=_read_scale(fields, family),
        score_cap=_read_cap(fields, "attn_logit_softcapping", family.score_cap) if family.caps else None,
        final_cap=_read_cap(fields, "final_logit_softcapping", family.final_cap) if family.caps else None,
        window=window,
        local=local,
        biases=frozenset(name for name in family.biases if fields.flag(name, False)),
        tied=fields.flag("tie_word_embeddings", family.tied),
        longest=longest,
        quantization=read_quantization(fields, (d_model, heads_q * d_head, d_ff)),
        dense_layers=dense_layers,
        dense=_write_layers(fields, [n in dense_layers for n in range(n_layers)]) if dense_layers else "",
        d_dense=fields.integer("intermediate_size", MAX_EXTENT) if dense_layers else 1,
    )


def _read_head_width(fields: ConfigFields, family: DecoderFamily, d_model: int, heads: int) -> int:
    if family.d_head is None and fields.value("head_dim") is None:
        if d_model % heads:
            fields.fail(f"hidden_size: expected a multiple of the {heads} num_attention_heads, found {d_model}")
        width = max(1, d_model // heads)
    else:
        width = fields.integer("head_dim", MAX_EXTENT, family.d_head)
    return width


def _read_experts(fields: ConfigFields, family: DecoderFamily) -> tuple[int, int, bool]:
    """How many experts there are, how many a token picks, and whether the weights of those add up to 1."""
    table = family.experts
    if table is None:
        return (0, 0, True)
    name, alternative = "num_experts", "num_local_experts"
    if fields.value(name) is None:
        name, alternative = alternative, name
    count = fields.integer(name, MAX_EXTENT, table.count)
    fields.require(alternative, (count,), f"{name} says {count}")
    picks = fields.integer("num_experts_per_tok", MAX_EXTENT, table.picks)
    if picks > count:
        fields.fail(f"num_experts_per_tok: expected at most the {count} {name}, found {picks}")
    return (count, picks, fields.flag("norm_topk_prob", False) if table.shares is None else table.shares)


def _read_dense(fields: ConfigFields, n_layers: int) -> tuple[int, ...]:
    """The layers that have one MLP: those that are listed, and all but each `step`-th one."""
    step, listed = fields.integer("decoder_sparse_step", MAX_POSITIONS, 1), fields.value("mlp_only_layers")
    numbers = [] if listed is None else listed
    if not isinstance(numbers, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        fields.fail(f"mlp_only_layers: expected a list of numbers of layers, found {describe_json(listed)}")
        return ()
    dense = tuple(n for n in range(n_layers) if n in numbers or (n + 1) % step)
    if len(dense) == n_layers:
        fields.fail("decoder_sparse_step: no layer has experts, which is not supported")
        return ()
    return dense


def _read_window(fields: ConfigFields, family: DecoderFamily, n_layers: int) -> tuple[int, str]:
    """The width of the sliding window, 0 where there is none, and the expression that says which layers have it."""
    fields.value("layer_types", "sliding_window_pattern")  # known fields, even if they have no effect
    if family.windows == "none":
        fields.require("sliding_window", (), f"a {family.kind} model has none")
        return (0, "")
    kinds = _read_layer_types(fields, n_layers) if family.windows in ("last", "pattern") else None
    if family.windows == "pattern":
        local = kinds if kinds is not None else _read_period(fields, family, n_layers)
        if fields.is_null("sliding_window"):
            fields.fail("sliding_window: null is not supported: some layers have one")
        window = fields.integer("sliding_window", MAX_POSITIONS, family.window)
        fields.require("sliding_window_size", (window,), f"sliding_window says {window}")
    else:
        window, first = _read_last(fields, family, n_layers)
        local = [n >= first for n in range(n_layers)]
        if kinds is not None and (window or any(kinds)):
            local = kinds
            if any(kinds) and not window:
                fields.fail("layer_types: sliding_attention needs a sliding_window")
    if any(local) and not all(local):
        return (window, _write_layers(fields, local))
    is_local = any(local)
    return (window if is_local else 0, str(int(is_local)) if family.local_theta is not None else "")


def _read_layer_types(fields: ConfigFields, n_layers: int) -> list[bool] | None:
    """Whether each layer has a window, by `layer_types`; None where they are not given. Problems are noted."""
    kinds = fields.value("layer_types")
    if kinds is None:
        return None
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        fields.fail(f"layer_types: expected a list of {n_layers} kinds, found {describe_json(kinds)}")
        return None
    strange = sorted(set(kinds) - known.keys())
    if strange:
        fields.fail(f"layer_types: {describe_json(strange[0])} is not supported", f"supported are {', '.join(known)}")
        return None
    if len(kinds) != n_layers:
        fields.fail(f"layer_types: expected {n_layers}, as num_hidden_layers says, found {len(kinds)}")
        return None
    return [known[kind] for kind in kinds]


def _read_last(fields: ConfigFields, family: DecoderFamily, n_layers: int) -> tuple[int, int]:
    """The width of the window of the last layers, and the first of these."""
    last, flagged = family.windows == "last", family.windows != "all"
    used = fields.flag("use_sliding_window", False) if flagged else True
    if flagged:
        fields.value("max_window_layers")  # a known field, even if it has no effect
    unsaid = fields.value("sliding_window") is None and family.window is None
    if not used or unsaid or fields.is_null("sliding_window"):
        fields.value("sliding_window")
        return (0, n_layers)
    window = fields.integer("sliding_window", MAX_POSITIONS, family.window)
    return (window, min(n_layers, fields.integer("max_window_layers", MAX_LAYERS, 28, minimum=0) if last else 0))


def _read_period(fields: ConfigFields, family: DecoderFamily, n_layers: int) -> list[bool]:
    """Which layers have a window, where one layer of several sees all keys."""
    period = family.period
    if fields.value("sliding_window_pattern") is not None:
        period = fields.integer("sliding_window_pattern", MAX_POSITIONS)
    else:
        fields.note(f"layer_types is not given: every layer of {period} sees all keys, the default of transformers")
    return [n % period > 0 for n in range(1, n_layers + 1)]


def _write_layers(fields: ConfigFields, local: list[bool]) -> str:
    """An expression of the layer `i` that is 1 where the layer is marked, and else 0."""
    n_layers, first = len(local), local.index(True)
    if all(local[first:]):
        return f"min(1, max(0, i - {first - 1}))"
    period = local.index(False) + 1
    if local == [n % period > 0 for n in range(1, n_layers + 1)]:
        return f"min(1, (i + 1) % {period})"
    period = next(p for p in range(1, n_layers + 1) if local == [local[n % p] for n in range(n_layers)])
    if period > MAX_BITS:
        fields.fail(f"layers with a window or an MLP follow no pattern of at most {MAX_BITS} layers")
    bits = sum(mark << n for n, mark in enumerate(local[:period]))
    return f"{bits} // 2 ** {'i' if period == n_layers else f'(i % {period})'} % 2"


def _read_scale(fields: ConfigFields, family: DecoderFamily) -> float | None:
    """The factor of scores, or None if it follows from the width of heads."""
    if family.query_scalar is None:
        return None
    return float(fields.real("query_pre_attn_scalar", family.query_scalar) ** -0.5)


def _read_cap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    """The value of a soft cap, or None where there is none."""
    unsaid = default is None and fields.value(name) is None
    return None if unsaid or fields.is_null(name) else fields.real(name, default)
