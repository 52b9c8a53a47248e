"""Decoders of the Llama family: Llama, Mistral, Qwen2, Qwen3. One shape, told apart by biases, windows and norms.

Two texts can be made of one: a *prefill* that reads whole prompts, and a *decode* step that reads a few new tokens per
sequence and the key/value caches. Positions are data, so one plan serves every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from einc.importers.common import ACTIVATIONS, EXTENT, LAYERS, LONGEST, element_type, refuse_other_forms
from einc.importers.fields import Fields, shown
from einc.importers.request import Request
from einc.importers.rotary import rope_arguments
from einc.importers.stored import Stored
from einc.importers.writing import Weight, comment, inputs, numbers, weights

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
FOREIGN = ("pool", "normalize", "segments")
"""What a request for a decoder cannot have."""

_PROMPT, _CACHE = 1024, 2048  # what is planned for where nothing is asked, if the model can take it
# The defaults of transformers where they differ; a Llama has as many heads of keys as of queries.
_HEADS_KV = {"mistral": 8, "qwen2": 32, "qwen3": 32}
_LONGEST = {"llama": 2048, "mistral": 131072}


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder's numbers. Layers from `first_windowed` on see `window` keys at most; 0 is no window. With `head_norms`
    each head of queries and keys is normalized before it is turned."""

    family: str
    dtype: str
    n_layers: int
    d_model: int
    heads_q: int
    heads_kv: int
    d_head: int
    d_ff: int
    vocab: int
    eps: float
    activation: str
    rope: str
    window: int
    first_windowed: int
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    tied: bool
    longest: int


def read(fields: Fields, family: str) -> Decoder:
    """The decoder that a configuration describes; problems are noted in the fields."""
    d_model = fields.integer("hidden_size", EXTENT)
    heads_q = fields.integer("num_attention_heads", EXTENT)
    as_many = fields.is_null("num_key_value_heads")
    heads_kv = fields.integer("num_key_value_heads", EXTENT, heads_q if as_many else _HEADS_KV.get(family, heads_q))
    if heads_q % heads_kv:
        fields.fail(f"num_attention_heads: expected a multiple of the {heads_kv} num_key_value_heads, found {heads_q}")
    d_head = _head_width(fields, family, d_model, heads_q)
    n_layers = fields.integer("num_hidden_layers", LAYERS)
    window, first = _window(fields, family, n_layers)
    biased = fields.flag("attention_bias", False) if family in ("llama", "qwen3") else False
    refuse_other_forms(fields)
    return Decoder(
        family=family,
        dtype=element_type(fields),
        n_layers=n_layers,
        d_model=d_model,
        heads_q=heads_q,
        heads_kv=heads_kv,
        d_head=d_head,
        d_ff=fields.integer("intermediate_size", EXTENT),
        vocab=fields.integer("vocab_size", LONGEST),
        eps=fields.real("rms_norm_eps", 1e-6, most=1.0),
        activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        rope=rope_arguments(fields),
        window=window,
        first_windowed=first,
        qkv_bias=biased or family == "qwen2",
        out_bias=biased,
        mlp_bias=fields.flag("mlp_bias", False) if family == "llama" else False,
        head_norms=family == "qwen3",
        tied=fields.flag("tie_word_embeddings", False),
        longest=fields.integer("max_position_embeddings", LONGEST, _LONGEST.get(family, 32768)),
    )


def _head_width(fields: Fields, family: str, d_model: int, heads: int) -> int:
    if family == "qwen3":
        width = fields.integer("head_dim", EXTENT, 128)
    elif fields.value("head_dim") is None:
        if d_model % heads:
            fields.fail(f"hidden_size: expected a multiple of the {heads} num_attention_heads, found {d_model}")
        width = max(1, d_model // heads)
    else:
        width = fields.integer("head_dim", EXTENT)
    if width % 2:
        fields.fail(f"a head is {width} wide, and rotary embedding turns pairs", "expected an even width")
    return width


def _window(fields: Fields, family: str, n_layers: int) -> tuple[int, int]:
    """The width of the sliding window, and the first layer that has it; a width of 0 is no window."""
    kinds = fields.value("layer_types")
    if family == "llama":
        fields.must_be("sliding_window", (), "a Llama model has none")
        return (0, 0)
    qwen = family != "mistral"
    used = fields.flag("use_sliding_window", False) if qwen else True
    if not used or fields.is_null("sliding_window"):
        fields.value("sliding_window", *(["max_window_layers"] if qwen else []))  # known, and without effect
        window, first = 0, n_layers
    else:
        window = fields.integer("sliding_window", LONGEST, 4096)
        first = min(n_layers, fields.integer("max_window_layers", LAYERS, 28, least=0) if qwen else 0)
    if kinds not in (None, ["full_attention"] * first + ["sliding_attention"] * (n_layers - first)):
        fields.fail(
            f"layer_types: {shown(kinds)} is not supported, but for the first {first} layers of full attention "
            f"and {n_layers - first} of sliding attention after them"
        )
    return (window, first)


def text(model: Decoder, request: Request, stored: Stored, name: str, fields: Fields) -> list[str]:
    """The lines of the model's text after its heading."""
    whole, layer = _weights(model)
    stored.check([(whole, 1), (layer, model.n_layers)])
    lines = [*_heading(request), f"model {name}", "", *_numbers(model, request, fields), ""]
    lines += [*_inputs(request), "", *weights(whole, model.dtype), ""]
    return [*lines, *_layer(model, request, layer), "", *_body(model, request)]


def _heading(request: Request) -> list[str]:
    if request.decode:
        return comment(
            "One step of decoding: the next tokens of every sequence, given the keys and values of all before them.",
            "`positions` says where each new token stands in its own sequence; its keys and values go there in the",
            "caches, whose places after it are not looked at, whatever they hold. What comes out as `new_keys.3` goes",
            "in as `keys.3` in the next step.",
        )
    lines = [
        "Prefill: the logits of whole prompts, and their keys and values for a decode step (`keys.3` are layer 3's).",
        "Prompts shorter than `length` may be filled up at their ends with any tokens; nothing before looks at them.",
    ]
    if request.logits != "all":
        lines += ["`last` is the place among all tokens of the token of each sequence whose logits are wanted."]
    return comment(*lines)


def _numbers(model: Decoder, request: Request, fields: Fields) -> list[str]:
    tokens = request.tokens or (1 if request.decode else min(_PROMPT, model.longest))
    slots = request.cache or min(_CACHE, model.longest)
    if not request.decode:
        slots = tokens
    if slots > model.longest:
        fields.note(f"{slots:,} tokens are more than its max_position_embeddings, {model.longest:,}")
    if slots < tokens:
        fields.fail(f"a cache of {slots:,} places cannot take {tokens:,} new tokens")
    params = [
        ("n_layers", str(model.n_layers), ""),
        ("batch", str(request.batch), "sequences"),
        ("length", str(tokens), "new tokens of each" if request.decode else "tokens of each"),
        ("lengths", "[length] * batch", "packed one after the other"),
    ]
    dims = [("tokens", "sum(lengths)", "")]
    if request.decode:
        params += [("cache", str(slots), "places in the cache of each"), ("cache_lengths", "[cache] * batch", "")]
        dims += [("places", "sum(cache_lengths)", "")]
    elif request.logits != "all":
        dims += [("sequences", "len(lengths)", "")]
    dims += [
        ("d_model", str(model.d_model), ""),
        ("heads_q", str(model.heads_q), ""),
        ("heads_kv", str(model.heads_kv), ""),
        ("d_head", str(model.d_head), ""),
        ("d_ff", str(model.d_ff), ""),
        ("vocab", str(model.vocab), ""),
    ]
    if model.window and model.first_windowed:
        params += [("window", str(model.window), f"keys that a query sees, from layer {model.first_windowed} on")]
    elif model.window:
        params += [("window", str(model.window), "keys that a query sees")]
    return [*numbers("param", params), "", *numbers("dim", dims)]


def _inputs(request: Request) -> list[str]:
    rows = [("ids", "i64[tokens]", "")]
    if request.decode:
        rows += [("positions", "i64[tokens]", "of each token in its own sequence, from 0")]
    elif request.logits != "all":
        rows += [("last", "i64[sequences]", "rows of `ids`")]
    return inputs(rows)


def _weights(model: Decoder) -> tuple[list[Weight], list[Weight]]:
    """The weights of the whole model, and those of a layer."""
    whole = [
        Weight("table", "vocab, d_model", "model.embed_tokens.weight"),
        Weight("g_last", "d_model", "model.norm.weight"),
    ]
    if not model.tied:
        whole.append(Weight("head", "vocab, d_model", "lm_head.weight"))
    at, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
    layer = [
        Weight("g_attn", "d_model", "model.layers.{i}.input_layernorm.weight"),
        Weight("w_q", "heads_q, d_head, d_model", f"{at}q_proj.weight"),
        Weight("w_k", "heads_kv, d_head, d_model", f"{at}k_proj.weight"),
        Weight("w_v", "heads_kv, d_head, d_model", f"{at}v_proj.weight"),
        Weight("w_o", "d_model, heads_q, d_head", f"{at}o_proj.weight"),
        Weight("g_mlp", "d_model", "model.layers.{i}.post_attention_layernorm.weight"),
        Weight("w_gate", "d_ff, d_model", f"{mlp}gate_proj.weight"),
        Weight("w_up", "d_ff, d_model", f"{mlp}up_proj.weight"),
        Weight("w_down", "d_model, d_ff", f"{mlp}down_proj.weight"),
    ]
    if model.qkv_bias:
        layer += [Weight(f"b_{x}", f"heads_{'q' if x == 'q' else 'kv'}, d_head", f"{at}{x}_proj.bias") for x in "qkv"]
    if model.head_norms:
        layer += [Weight(f"g_{x}", "d_head", f"{at}{x}_norm.weight") for x in "qk"]
    if model.out_bias:
        layer.append(Weight("b_o", "d_model", f"{at}o_proj.bias"))
    if model.mlp_bias:
        layer += [
            Weight("b_gate", "d_ff", f"{mlp}gate_proj.bias"),
            Weight("b_up", "d_ff", f"{mlp}up_proj.bias"),
            Weight("b_down", "d_model", f"{mlp}down_proj.bias"),
        ]
    return whole, layer


def _layer(model: Decoder, request: Request, table: list[Weight]) -> list[str]:
    places = "positions=positions" if request.decode else "seq_lens=lengths"
    q, k, v = ("q + b_q", "k + b_k", "v + b_v") if model.qkv_bias else ("q", "k", "v")
    sees = ["causal=true"]
    if request.decode:
        sees += ["q_lens=lengths", "k_lens=cache_lengths", "positions=positions"]
    else:
        sees += ["seq_lens=lengths"]
    if model.window and model.first_windowed:
        sees += [f"window=window * min(1, max(0, i - {model.first_windowed - 1}))"]
    elif model.window:
        sees += ["window=window"]
    given = "x, keys, values, positions, i" if request.decode else "x, i"
    lines = [
        f"block layer({given}) {{",
        *weights(table, model.dtype, "    "),
        "",
        f"    h = rmsnorm(x, g_attn, eps={model.eps!r})",
        "    q[heads_q, tokens, d_head] = h[tokens, d_model] * w_q[heads_q, d_head, d_model]",
        "    k[heads_kv, tokens, d_head] = h[tokens, d_model] * w_k[heads_kv, d_head, d_model]",
        "    v[heads_kv, tokens, d_head] = h[tokens, d_model] * w_v[heads_kv, d_head, d_model]",
    ]
    if model.head_norms:
        lines += [f"    n{x} = rmsnorm({given}, g_{x}, eps={model.eps!r})" for x, given in (("q", q), ("k", k))]
        q, k = "nq", "nk"
    lines += [f"    r{x} = rope({given}, {places}, {model.rope})" for x, given in (("q", q), ("k", k))]
    all_k, all_v = "rk", "v"
    if v != "v":
        lines += [f"    bv = {v}"]
        all_v = "bv"
    if request.decode:
        lens = "positions, cache_lens=cache_lengths, new_lens=lengths"
        lines += [f"    ks = append(keys, rk, {lens})", f"    vs = append(values, {all_v}, {lens})"]
        all_k, all_v = "ks", "vs"
    bias = {part: f" + b_{part}" if part in {weight.name[2:] for weight in table if weight.name[0] == "b"} else ""
            for part in ("o", "gate", "up", "down")}  # fmt: skip
    lines += [
        f"    a = attention(rq, {all_k}, {all_v}, {', '.join(sees)})",
        "    o[tokens, d_model] = a[heads_q, tokens, d_head] * w_o[d_model, heads_q, d_head]",
        f"    r = x + o{bias['o']}",
        f"    n = rmsnorm(r, g_mlp, eps={model.eps!r})",
        "    gate[tokens, d_ff] = n[tokens, d_model] * w_gate[d_ff, d_model]",
        "    up[tokens, d_ff] = n[tokens, d_model] * w_up[d_ff, d_model]",
        f"    f = {model.activation}(gate{bias['gate']}) * " + ("(up + b_up)" if bias["up"] else "up"),
        "    down[tokens, d_model] = f[tokens, d_ff] * w_down[d_model, d_ff]",
        f"    return r + down{bias['down']}, {all_k}, {all_v}",
        "}",
    ]
    return lines


def _body(model: Decoder, request: Request) -> list[str]:
    head = "table" if model.tied else "head"
    lines = ["x = embedding(ids, table)", "repeat n_layers as i {"]
    if request.decode:
        lines += [
            *inputs([(name, f"{model.dtype}[heads_kv, places, d_head]", "") for name in ("keys", "values")], "    "),
            "    x, new_keys, new_values = layer(x, keys, values, positions, i)",
            "    output new_keys, new_values",
            "}",
        ]
    else:
        lines += ["    x, keys, values = layer(x, i)", "    output keys, values", "}"]
    lines += [f"last_x = rmsnorm(x, g_last, eps={model.eps!r})"]
    if request.decode or request.logits == "all":
        lines += [f"logits[tokens, vocab] = last_x[tokens, d_model] * {head}[vocab, d_model]"]
    else:
        lines += [
            "rows = embedding(last, last_x)  # of the last tokens only",
            f"logits[sequences, vocab] = rows[sequences, d_model] * {head}[vocab, d_model]",
        ]
    return [*lines, "", "output logits"]
