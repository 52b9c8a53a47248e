"""Texts of decoders: the declarations, a layer as a block, and what repeats it.

A text reads whole sequences. Steps of decoding are derived from it (`graph.decode_step`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from einc.importers.common import ImportRequest
from einc.importers.config import ConfigFields
from einc.importers.decoders import Decoder
from einc.importers.expert_text import find_wide_type, list_experts, write_experts
from einc.importers.quantization import quantize_weights
from einc.importers.writing import (
    StoredNames,
    StoredWeight,
    comment_lines,
    declare_inputs,
    declare_numbers,
    declare_weights,
    name_rows,
    wrap_lines,
)

_PROMPT = 1024  # the default length, if the model allows it

LAST_COMMENT = "`last` is the place among all tokens of the token of each sequence whose logits are wanted."


def wants_last(request: ImportRequest) -> bool:
    """Whether the logits of one token of each sequence are computed."""
    return request.logits != "all"


def write_decoder(
    model: Decoder, request: ImportRequest, stored: StoredNames, name: str, fields: ConfigFields
) -> list[str]:
    """The lines of the model's text after its heading."""
    outer, layer = (quantize_weights(model.quantization, table, stored) for table in list_weights(model))
    dense = [] if not model.dense else list_weights(_make_dense(model))[1]
    sparse_layers = [n for n in range(model.n_layers) if n not in model.dense_layers]
    stored.check([(outer, [0]), (layer, sparse_layers), (dense, model.dense_layers)])
    if dense and model.quantization is not None:
        fields.fail("quantization_config: it is not supported where only some layers have experts")
    lines = [*_write_heading(request), f"model {name}", "", *_write_numbers(model, request, fields), ""]
    lines += [*_write_inputs(request), "", *declare_weights(outer, model.dtype), ""]
    lines += [*_write_layer(model, request, layer), ""]
    if dense:
        lines += [*_write_dense_layer(model, request, dense), ""]
    return [*lines, *_write_body(model, request)]


def _write_heading(request: ImportRequest) -> list[str]:
    keys = ", and their keys and values (`keys.3` are layer 3's)" if request.caches else ""
    lines = [
        f"The logits of sequences{keys}.",
        "One that is shorter than `length` may be filled up at its end with any tokens; nothing before looks at them.",
        "A step of decoding is derived from this text: `einc compile --step tokens=1`.",
    ]
    if wants_last(request):
        lines += [LAST_COMMENT]
    return comment_lines(*lines)


def _write_numbers(model: Decoder, request: ImportRequest, fields: ConfigFields) -> list[str]:
    tokens = request.tokens or min(_PROMPT, model.longest)
    if tokens > model.longest:
        fields.note(f"{tokens:,} tokens are more than its max_position_embeddings, {model.longest:,}")
    if tokens > model.rotary.longest:
        fields.fail(
            f"its heads are rotated at another rate in texts of more than {model.rotary.longest:,} tokens, "
            "and a plan has one rate",
            "take fewer: --tokens",
        )
    params = [
        ("n_layers", str(model.n_layers), ""),
        ("batch", str(request.batch), "sequences"),
        ("length", str(tokens), "tokens of each"),
        ("lengths", "[length] * batch", "packed one after the other"),
    ]
    dims = [("tokens", "sum(lengths)", "")]
    if wants_last(request):
        dims += [("sequences", "len(lengths)", "")]
    dims += [
        ("d_model", str(model.d_model), ""),
        ("heads_q", str(model.heads_q), ""),
        ("heads_kv", str(model.heads_kv), ""),
        ("d_head", str(model.d_head), ""),
        *([("d_attn", "heads_q * d_head", "")] if model.flat_heads else []),
        *([("experts", str(model.experts), "")] if model.experts else []),
        ("d_ff", str(model.d_ff), ""),
        *([("d_dense", str(model.d_dense), "of layers without experts")] if model.dense else []),
        ("vocab", str(model.vocab), ""),
    ]
    if model.experts:
        params += [("top_k", str(model.picks), "experts that work on a token")]
    if model.window:
        where = " in local layers" if model.local else ""
        params += [("window", str(model.window), f"keys that a query sees{where}")]
    factors = f"param factors = [{', '.join(map(repr, model.rotary.factors))}]" if model.rotary.factors else ""
    return [
        *declare_numbers("param", params),
        *wrap_lines([factors] * bool(factors)),
        "",
        *declare_numbers("dim", dims),
    ]


def _write_inputs(request: ImportRequest) -> list[str]:
    rows = [("ids", "i64[tokens]", "")]
    if wants_last(request):
        rows += [("last", "i64[sequences]", "rows of `ids`")]
    return declare_inputs(rows)


def _write_layer(model: Decoder, request: ImportRequest, table: list[StoredWeight], name: str = "layer") -> list[str]:
    lines = [
        f"block {name}({_format_layer_arguments(model)}) {{",
        *declare_weights(table, model.dtype, "    "),
        "",
    ]
    return [*lines, *wrap_lines(_write_attention(model)), *_write_mlp(model, request), "}"]


def _make_dense(model: Decoder) -> Decoder:
    """The same with one MLP in place of experts."""
    return replace(model, experts=0, family=replace(model.family, experts=None))


def _write_dense_layer(model: Decoder, request: ImportRequest, table: list[StoredWeight]) -> list[str]:
    """The block of layers with one MLP, which has another width than experts have."""
    lines = _write_layer(_make_dense(model), request, table, "dense_layer")
    return [re.sub(r"\bd_ff\b", "d_dense", line) for line in lines]


def _format_layer_arguments(model: Decoder, local: str = "local") -> str:
    """The arguments of a layer. `local` is 1 in a layer that sees only the keys in a window, else 0."""
    return f"x, i{f', {local}' if model.local else ''}"


def _write_norm(model: Decoder, tensor: str, gain: str) -> str:
    """The expression for a normalized tensor, or the tensor itself if the layer has no such norm."""
    if gain in GAINS and model.family.norms[GAINS.index(gain)] is None:
        return tensor
    offset = f", offset={model.family.offset!r}" if model.family.offset else ""
    return f"rmsnorm({tensor}, {gain}, eps={model.eps!r}{offset})"


def _write_attention(model: Decoder) -> list[str]:
    """The lines that compute `r`, the sum of `x` and the result of attention."""
    lines = [
        f"    h = {_write_norm(model, 'x', 'g_attn')}",
        "    q[heads_q, tokens, d_head] = h[tokens, d_model] * w_q[heads_q, d_head, d_model]",
        "    k[heads_kv, tokens, d_head] = h[tokens, d_model] * w_k[heads_kv, d_head, d_model]",
        "    v[heads_kv, tokens, d_head] = h[tokens, d_model] * w_v[heads_kv, d_head, d_model]",
    ]
    q, k = ("q + b_q", "k + b_k") if model.qkv_bias else ("q", "k")
    if model.family.head_norms:
        lines += [line for x, source in (("q", q), ("k", k)) for line in _write_head_norm(model, x, source)]
        q, k = "nq", "nk"
    lines += [
        f"    r{x} = {model.rotary.apply(source, 'seq_lens=lengths', model.d_head)}"
        for x, source in (("q", q), ("k", k))
    ]
    if model.qkv_bias:
        lines += ["    bv = v + b_v"]
    return [
        *lines,
        f"    a = attention(rq, rk, {_name_values(model)}, {', '.join(_list_mask_arguments(model))})",
        *_write_output(model),
        f"    r = x + {_write_norm(model, 'o + b_o' if 'attention_bias' in model.biases else 'o', 'g_attn_out')}",
    ]


def _write_output(model: Decoder) -> list[str]:
    """The lines of the projection after attention."""
    if not model.flat_heads:
        return ["    o[tokens, d_model] = a[heads_q, tokens, d_head] * w_o[d_model, heads_q, d_head]"]
    return [
        '    flat = reshape(transpose(a, "tokens", "heads_q", "d_head"), tokens=tokens, d_attn=d_attn)',
        "    o[tokens, d_model] = flat[tokens, d_attn] * w_o[d_model, d_attn]",
    ]


def _write_head_norm(model: Decoder, x: str, source: str) -> list[str]:
    """`nq` or `nk`, normalized over each head, or over all heads together. For the latter, squares are summed in f32 at
    least, so that plans may cut heads and add up a number for each token."""
    if model.family.head_norms == "each":
        return [f"    n{x} = {_write_norm(model, source, f'g_{x}')}"]
    heads = "heads_q" if x == "q" else "heads_kv"
    name = f"b{x}" if model.qkv_bias else x
    operand, element = name, f"{name}[{heads}, tokens, d_head]"
    narrow = model.dtype != find_wide_type(model)
    if narrow:
        operand, element = (f'cast({value}, "{find_wide_type(model)}")' for value in (operand, element))
    normed = f"{operand} * rsqrt(square_{x} / ({heads} * d_head) + {model.eps!r}) * g_{x}"
    return [
        *([f"    {name} = {source}"] if model.qkv_bias else []),
        f"    square_{x}[tokens] = sum[{heads}, d_head]({element} * {element})",
        f'    n{x} = cast({normed}, "{model.dtype}")' if narrow else f"    n{x} = {normed}",
    ]


def _name_values(model: Decoder) -> str:
    return "bv" if model.qkv_bias else "v"


def _list_mask_arguments(model: Decoder) -> list[str]:
    """The arguments of attention that say which keys a query sees."""
    sees = ["causal=true", "seq_lens=lengths"]
    if model.window:
        sees += ["window=window * local" if model.local else "window=window"]
    if model.scale is not None:
        sees += [f"scale={model.scale!r}"]
    if model.score_cap is not None:
        sees += [f"softcap={model.score_cap!r}"]
    return sees


def _write_mlp(model: Decoder, request: ImportRequest) -> list[str]:
    """The lines that compute the results of the layer from `r`."""
    gate, up, down = "gate", "up", "down"
    if "mlp_bias" in model.biases:
        gate, up, down = "gate + b_gate", "(up + b_up)", "down + b_down"
    returned = f", rk, {_name_values(model)}" if request.caches else ""
    products = [
        "    gate[tokens, d_ff] = n[tokens, d_model] * w_gate[d_ff, d_model]",
        "    up[tokens, d_ff] = n[tokens, d_model] * w_up[d_ff, d_model]",
        f"    f = {model.activation}({gate}) * {up}",
        "    down[tokens, d_model] = f[tokens, d_ff] * w_down[d_model, d_ff]",
    ]
    return [
        f"    n = {_write_norm(model, 'r', 'g_mlp')}",
        *(write_experts(model) if model.experts else products),
        f"    return r + {_write_norm(model, down, 'g_mlp_out')}{returned}",
    ]


def _write_body(model: Decoder, request: ImportRequest) -> list[str]:
    head = "table" if model.tied else "head"
    scale = " * d_model ** 0.5" if model.family.scaled else ""
    lines = [f"x = embedding(ids, table){scale}", "repeat n_layers as i {"]
    arguments = _format_layer_arguments(model, model.local)
    if model.dense:
        results = "x, keys, values" if request.caches else "x"
        ends = "; output keys, values" * request.caches
        lines += [
            f"    repeat {model.dense} {{ {results} = dense_layer({arguments}){ends} }}",
            f"    repeat 1 - {model.dense} {{ {results} = layer({arguments}){ends} }}",
            "}",
        ]
    elif request.caches:
        lines += [f"    x, keys, values = layer({arguments})", "    output keys, values", "}"]
    else:
        lines += [f"    x = layer({arguments})", "}"]
    lines += [f"last_x = {_write_norm(model, 'x', 'g_last')}"]
    each, rows_name = ("sequences", "rows") if wants_last(request) else ("tokens", "last_x")
    if rows_name == "rows":
        lines += ["rows = embedding(last, last_x)  # of the last tokens only"]
    logits = "logits" if model.final_cap is None else "raw"
    lines += [f"{logits}[{each}, vocab] = {rows_name}[{each}, d_model] * {head}[vocab, d_model]"]
    if model.final_cap is not None:
        lines += [f"logits = {model.final_cap!r} * tanh(raw / {model.final_cap!r})"]
    return [*lines, "", "output logits"]


# ---- weights: their names in a text and in files ----

GAINS = ("g_attn", "g_attn_out", "g_mlp", "g_mlp_out")
"""The names of the gains of the norms in a layer, in the order of `Norms`."""


def list_weights(model: Decoder) -> tuple[list[StoredWeight], list[StoredWeight]]:
    """The weights of the whole model, and those of a layer."""
    outer = [
        StoredWeight("table", "vocab, d_model", "model.embed_tokens.weight"),
        StoredWeight("g_last", "d_model", "model.norm.weight"),
    ]
    if not model.tied:
        outer.append(StoredWeight("head", "vocab, d_model", "lm_head.weight"))
    before, *between, after = (
        [StoredWeight(name, "d_model", f"{stored}.weight")] if stored is not None else []
        for name, stored in zip(GAINS, model.family.norms, strict=True)
    )
    layer = [
        *before,
        *_list_attention(model),
        *itertools.chain(*between),
        *(_list_mlp(model) if model.family.experts is None else list_experts(model, model.family.experts)),
        *after,
        *_list_small(model),
    ]
    return outer, [replace(weight, stored=f"model.layers.{{i}}.{weight.stored}") for weight in layer]


def _list_attention(model: Decoder) -> list[StoredWeight]:
    q, k, v, o = (f"self_attn.{x}_proj.weight" for x in "qkvo")
    if model.family.fused:
        heads = [heads * model.d_head for heads in (model.heads_q, model.heads_kv, model.heads_kv)]
        q, k, v = name_rows("self_attn.qkv_proj.weight", heads)
    return [
        StoredWeight("w_q", "heads_q, d_head, d_model", q),
        StoredWeight("w_k", "heads_kv, d_head, d_model", k),
        StoredWeight("w_v", "heads_kv, d_head, d_model", v),
        StoredWeight("w_o", f"d_model, {'d_attn' if model.flat_heads else 'heads_q, d_head'}", o),
    ]


def _list_mlp(model: Decoder) -> list[StoredWeight]:
    gate, up, down = (f"mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
    if model.family.fused:
        gate, up = name_rows("mlp.gate_up_proj.weight", [model.d_ff] * 2)
    return [
        StoredWeight("w_gate", "d_ff, d_model", gate),
        StoredWeight("w_up", "d_ff, d_model", up),
        StoredWeight("w_down", "d_model, d_ff", down),
    ]


def _list_small(model: Decoder) -> list[StoredWeight]:
    """Biases, and the gains of heads."""
    table = []
    if model.qkv_bias:
        of = {"q": "heads_q", "k": "heads_kv", "v": "heads_kv"}
        table += [StoredWeight(f"b_{x}", f"{of[x]}, d_head", f"self_attn.{x}_proj.bias") for x in of]
    if model.family.head_norms:
        each = model.family.head_norms == "each"
        for x, heads in (("q", "heads_q"), ("k", "heads_kv")):
            dims, dtype = ("d_head", "") if each else (f"{heads}, d_head", find_wide_type(model))
            table.append(StoredWeight(f"g_{x}", dims, f"self_attn.{x}_norm.weight", dtype=dtype))
    if "attention_bias" in model.biases:
        table.append(StoredWeight("b_o", "d_model", "self_attn.o_proj.bias"))
    if "mlp_bias" in model.biases:
        widths = {"gate": "d_ff", "up": "d_ff", "down": "d_model"}
        table += [StoredWeight(f"b_{x}", widths[x], f"mlp.{x}_proj.bias") for x in widths]
    return table
