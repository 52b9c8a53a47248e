"""Texts of decoders: the declarations, a layer as a block, and what repeats it.

Two texts can be made of one: a *prefill* that reads whole prompts, and a *decode* step that reads a few new tokens per
sequence and the key/value caches. Positions are data, so one plan serves every step.
"""

from __future__ import annotations

from einc.importers.decoder_weights import GAINS, stored_weights, wide
from einc.importers.decoders import Decoder
from einc.importers.fields import Fields
from einc.importers.request import Request
from einc.importers.stored import Stored
from einc.importers.writing import Weight, comment, inputs, numbers, weights, wrapped

_PROMPT, _CACHE = 1024, 2048  # what is planned for where nothing is asked, if the model can take it


def text(model: Decoder, request: Request, stored: Stored, name: str, fields: Fields) -> list[str]:
    """The lines of the model's text after its heading."""
    whole, layer = stored_weights(model)
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
    if slots > model.rotary.longest:
        fields.fail(
            f"its heads turn at another pace in texts of more than {model.rotary.longest:,} tokens, and a plan has one",
            "take fewer: --tokens of a prefill, --cache of a decode step",
        )
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
        *([("experts", str(model.experts), "")] if model.experts else []),
        ("d_ff", str(model.d_ff), ""),
        ("vocab", str(model.vocab), ""),
    ]
    if model.experts:
        params += [("top_k", str(model.picks), "experts that work on a token")]
    if model.window:
        where = " in local layers" if model.local else ""
        params += [("window", str(model.window), f"keys that a query sees{where}")]
    factors = f"param factors = [{', '.join(map(repr, model.rotary.factors))}]" if model.rotary.factors else ""
    return [*numbers("param", params), *wrapped([factors] * bool(factors)), "", *numbers("dim", dims)]


def _inputs(request: Request) -> list[str]:
    rows = [("ids", "i64[tokens]", "")]
    if request.decode:
        rows += [("positions", "i64[tokens]", "of each token in its own sequence, from 0")]
    elif request.logits != "all":
        rows += [("last", "i64[sequences]", "rows of `ids`")]
    return inputs(rows)


def _layer(model: Decoder, request: Request, table: list[Weight]) -> list[str]:
    lines = [f"block layer({_given(model, request)}) {{", *weights(table, model.dtype, "    "), ""]
    return [*lines, *wrapped(_attention(model, request)), *_mlp(model, request), "}"]


def _given(model: Decoder, request: Request, local: str = "local") -> str:
    """What a layer is given. `local` is 1 where it sees the keys in a window alone, else 0."""
    cached = "keys, values, positions, " if request.decode else ""
    return f"x, {cached}i{f', {local}' if model.local else ''}"


def _norm(model: Decoder, tensor: str, gain: str) -> str:
    """A tensor normalized, or as it is where the layer has no such norm."""
    if gain in GAINS and model.family.norms[GAINS.index(gain)] is None:
        return tensor
    offset = f", offset={model.family.offset!r}" if model.family.offset else ""
    return f"rmsnorm({tensor}, {gain}, eps={model.eps!r}{offset})"


def _attention(model: Decoder, request: Request) -> list[str]:
    """From `x` to `r`, its sum with what attention gives."""
    lines = [
        f"    h = {_norm(model, 'x', 'g_attn')}",
        "    q[heads_q, tokens, d_head] = h[tokens, d_model] * w_q[heads_q, d_head, d_model]",
        "    k[heads_kv, tokens, d_head] = h[tokens, d_model] * w_k[heads_kv, d_head, d_model]",
        "    v[heads_kv, tokens, d_head] = h[tokens, d_model] * w_v[heads_kv, d_head, d_model]",
    ]
    q, k = ("q + b_q", "k + b_k") if model.qkv_bias else ("q", "k")
    if model.family.head_norms:
        lines += [line for x, given in (("q", q), ("k", k)) for line in _head_norm(model, x, given)]
        q, k = "nq", "nk"
    places = "positions=positions" if request.decode else "seq_lens=lengths"
    lines += [f"    r{x} = {model.rotary.turned(given, places, model.d_head)}" for x, given in (("q", q), ("k", k))]
    if model.qkv_bias:
        lines += ["    bv = v + b_v"]
    if request.decode:
        lens = "positions, cache_lens=cache_lengths, new_lens=lengths"
        lines += [f"    ks = append(keys, rk, {lens})", f"    vs = append(values, {_new_values(model)}, {lens})"]
    keys, values = _cached(model, request)
    return [
        *lines,
        f"    a = attention(rq, {keys}, {values}, {', '.join(_sees(model, request))})",
        "    o[tokens, d_model] = a[heads_q, tokens, d_head] * w_o[d_model, heads_q, d_head]",
        f"    r = x + {_norm(model, 'o + b_o' if 'attention_bias' in model.biases else 'o', 'g_attn_out')}",
    ]


def _head_norm(model: Decoder, x: str, given: str) -> list[str]:
    """`nq` or `nk`, normalized over each head, or over all heads together. For the latter, squares are summed in f32 at
    least, so that plans may cut heads and add up a number for each token."""
    if model.family.head_norms == "each":
        return [f"    n{x} = {_norm(model, given, f'g_{x}')}"]
    heads = "heads_q" if x == "q" else "heads_kv"
    name = f"b{x}" if model.qkv_bias else x
    whole, element = name, f"{name}[{heads}, tokens, d_head]"
    narrow = model.dtype != wide(model)
    if narrow:
        whole, element = (f'cast({value}, "{wide(model)}")' for value in (whole, element))
    normed = f"{whole} * rsqrt(square_{x} / ({heads} * d_head) + {model.eps!r}) * g_{x}"
    return [
        *([f"    {name} = {given}"] if model.qkv_bias else []),
        f"    square_{x}[tokens] = sum[{heads}, d_head]({element} * {element})",
        f'    n{x} = cast({normed}, "{model.dtype}")' if narrow else f"    n{x} = {normed}",
    ]


def _new_values(model: Decoder) -> str:
    return "bv" if model.qkv_bias else "v"


def _cached(model: Decoder, request: Request) -> tuple[str, str]:
    """What the keys and values that attention looks at are called, which is also what a layer gives."""
    return ("ks", "vs") if request.decode else ("rk", _new_values(model))


def _sees(model: Decoder, request: Request) -> list[str]:
    """The arguments of attention that say who sees whom."""
    sees = ["causal=true"]
    if request.decode:
        sees += ["q_lens=lengths", "k_lens=cache_lengths", "positions=positions"]
    else:
        sees += ["seq_lens=lengths"]
    if model.window:
        sees += ["window=window * local" if model.local else "window=window"]
    if model.scale is not None:
        sees += [f"scale={model.scale!r}"]
    if model.score_cap is not None:
        sees += [f"softcap={model.score_cap!r}"]
    return sees


def _mlp(model: Decoder, request: Request) -> list[str]:
    """From `r` to what the layer gives."""
    gate, up, down = "gate", "up", "down"
    if "mlp_bias" in model.biases:
        gate, up, down = "gate + b_gate", "(up + b_up)", "down + b_down"
    each, share = ("experts, ", " * shares") if model.experts else ("", "")
    return [
        f"    n = {_norm(model, 'r', 'g_mlp')}",
        *(_router(model) if model.experts else []),
        f"    gate[{each}tokens, d_ff] = n[tokens, d_model] * w_gate[{each}d_ff, d_model]",
        f"    up[{each}tokens, d_ff] = n[tokens, d_model] * w_up[{each}d_ff, d_model]",
        f"    f = {model.activation}({gate}) * {up}{share}",
        f"    down[tokens, d_model] = f[{each}tokens, d_ff] * w_down[{each}d_model, d_ff]",
        f"    return r + {_norm(model, down, 'g_mlp_out')}, {', '.join(_cached(model, request))}",
    ]


def _router(model: Decoder) -> list[str]:
    """The share that each expert has in each token: 0 for those that the token did not pick."""
    narrow = model.dtype != wide(model)
    shares = 'picked / sum(picked, "experts")' if model.shares else "picked"
    return [
        *([f'    wide = cast(n, "{wide(model)}")'] if narrow else []),
        f"    scores[tokens, experts] = {'wide' if narrow else 'n'}[tokens, d_model] * w_router[experts, d_model]",
        '    chances = softmax(scores, "experts")',
        '    least = min(topk(chances, top_k, "experts"), "k")  # of those picked',
        "    picked = where(chances >= least, chances, 0.0)",
        f'    shares = cast({shares}, "{model.dtype}")' if narrow else f"    shares = {shares}",
    ]


def _body(model: Decoder, request: Request) -> list[str]:
    head = "table" if model.tied else "head"
    scale = " * d_model ** 0.5" if model.family.scaled else ""
    lines = [f"x = embedding(ids, table){scale}", "repeat n_layers as i {"]
    if request.decode:
        lines += [
            *inputs([(name, f"{model.dtype}[heads_kv, places, d_head]", "") for name in ("keys", "values")], "    "),
            f"    x, new_keys, new_values = layer({_given(model, request, model.local)})",
            "    output new_keys, new_values",
            "}",
        ]
    else:
        lines += [f"    x, keys, values = layer({_given(model, request, model.local)})", "    output keys, values", "}"]
    lines += [f"last_x = {_norm(model, 'x', 'g_last')}"]
    each, given = ("tokens", "last_x") if request.decode or request.logits == "all" else ("sequences", "rows")
    if given == "rows":
        lines += ["rows = embedding(last, last_x)  # of the last tokens only"]
    logits = "logits" if model.final_cap is None else "raw"
    lines += [f"{logits}[{each}, vocab] = {given}[{each}, d_model] * {head}[vocab, d_model]"]
    if model.final_cap is not None:
        lines += [f"logits = {model.final_cap!r} * tanh(raw / {model.final_cap!r})"]
    return [*lines, "", "output logits"]
