"""Encoders of the BERT family: hidden states, pooled sentence embeddings, or the logits of the published heads."""

from __future__ import annotations

from dataclasses import dataclass

from einc.importers.common import (
    ACTIVATION_NAMES,
    ENCODED_TOKENS,
    MAX_EXTENT,
    MAX_LAYERS,
    MAX_POSITIONS,
    ImportRequest,
    read_element_type,
    refuse_other_forms,
)
from einc.importers.config import ConfigFields
from einc.importers.writing import (
    StoredNames,
    StoredWeight,
    comment_lines,
    declare_inputs,
    declare_numbers,
    declare_weights,
)

ENCODER_OUTPUTS = {
    "BertModel": "hidden",
    "BertForMaskedLM": "words",
    "BertForSequenceClassification": "sequences",
    "BertForTokenClassification": "tokens",
}
"""What each architecture computes from the hidden states."""

DECODER_OPTIONS = ("caches", "logits")
"""Options of a request that mean nothing for an encoder."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder's numbers; `head` is a value of ENCODER_OUTPUTS."""

    head: str
    dtype: str
    n_layers: int
    d_model: int
    heads: int
    d_ff: int
    vocab: int
    longest: int
    segments: int
    labels: int
    eps: float
    activation: str
    tied: bool


def read_encoder(fields: ConfigFields, head: str) -> Encoder:
    """The encoder that a configuration describes; problems are noted in the fields."""
    d_model = fields.integer("hidden_size", MAX_EXTENT)
    heads = fields.integer("num_attention_heads", MAX_EXTENT)
    if d_model % heads:
        fields.fail(f"hidden_size: expected a multiple of the {heads} num_attention_heads, found {d_model}")
    refuse_other_forms(fields)
    fields.require("quantization_config", (), "quantized weights of encoders cannot be read")
    fields.require("is_decoder", (False,), "an encoder sees in both directions")
    fields.require("position_embedding_type", ("absolute",), "positions are embedded by a table")
    return Encoder(
        head=head,
        dtype=read_element_type(fields),
        n_layers=fields.integer("num_hidden_layers", MAX_LAYERS),
        d_model=d_model,
        heads=heads,
        d_ff=fields.integer("intermediate_size", MAX_EXTENT),
        vocab=fields.integer("vocab_size", MAX_POSITIONS),
        longest=fields.integer("max_position_embeddings", MAX_POSITIONS, 512),
        segments=fields.integer("type_vocab_size", MAX_POSITIONS, 2),
        labels=_count_labels(fields) if head in ("sequences", "tokens") else 0,
        eps=fields.real("layer_norm_eps", 1e-12, maximum=1.0),
        activation=fields.choice("hidden_act", ACTIVATION_NAMES, "gelu"),
        tied=fields.flag("tie_word_embeddings", True) if head == "words" else _skip_tied(fields),
    )


def _count_labels(fields: ConfigFields) -> int:
    named = fields.value("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    return fields.integer("num_labels", MAX_EXTENT, 2)


def _skip_tied(fields: ConfigFields) -> bool:
    """Reads the field without using it: without a head of words there is nothing to tie."""
    fields.value("tie_word_embeddings")
    return True


def write_encoder(
    model: Encoder, request: ImportRequest, stored: StoredNames, name: str, fields: ConfigFields
) -> list[str]:
    """The lines of the model's text after its heading."""
    if model.head != "hidden" and (request.pool or request.normalize):
        fields.fail("only a BertModel is pooled; this one has a head of its own")
    tokens = request.tokens or min(ENCODED_TOKENS, model.longest)
    if tokens > model.longest:
        fields.fail(f"{tokens:,} tokens are more than its max_position_embeddings, {model.longest:,}")
    before, layer, after = (_match_spelling(stored, table) for table in _list_weights(model))
    stored.check([([*before, *after], [0]), (layer, range(model.n_layers))])
    return [
        *_write_heading(request),
        f"model {name}",
        "",
        *_write_numbers(model, request, tokens),
        "",
        *_write_inputs(request),
        "",
        *declare_weights([*before, *after], model.dtype),
        "",
        *_write_layer(model, layer),
        "",
        *_write_body(model, request),
    ]


def _match_spelling(stored: StoredNames, table: list[StoredWeight]) -> list[StoredWeight]:
    """The weights with the names that the files have.

    Files of a model with a head have `bert.` before the names of its encoder, others do not. Old files say gamma and
    beta.
    """

    def plain(name: str) -> str:
        return name.removeprefix("bert.")

    def prefixed(name: str) -> str:
        return name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"

    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    ways = (plain, prefixed, old, lambda name: old(plain(name)), lambda name: old(prefixed(name)))
    return stored.match_spelling(table, *ways)


def _write_heading(request: ImportRequest) -> list[str]:
    lines = ["`mask` is true where a sentence has a token and false where it is filled up."]
    if not request.segments:
        lines += ["All tokens are of the first segment (token type 0)."]
    return comment_lines(*lines)


def _write_numbers(model: Encoder, request: ImportRequest, tokens: int) -> list[str]:
    params = [
        ("n_layers", str(model.n_layers), ""),
        ("batch", str(request.batch), "sentences"),
        ("length", str(tokens), "tokens of each, filled up"),
        ("lengths", "[length] * batch", ""),
    ]
    dims = [
        ("sentences", "batch", ""),
        ("places", "length", ""),
        ("tokens", "batch * length", ""),
        ("d_model", str(model.d_model), ""),
        ("heads", str(model.heads), ""),
        ("d_head", "d_model // heads", ""),
        ("d_ff", str(model.d_ff), ""),
        ("vocab", str(model.vocab), ""),
        ("positions", str(model.longest), ""),
        ("segments", str(model.segments), ""),
    ]
    if model.head == "words" or model.head == "sequences":
        dims += [("d_out", "d_model", "")]
    if model.labels:
        dims += [("labels", str(model.labels), "")]
    return [*declare_numbers("param", params), "", *declare_numbers("dim", dims)]


def _write_inputs(request: ImportRequest) -> list[str]:
    rows = [("ids", "i64[sentences, places]", ""), ("mask", "bool[sentences, places]", "")]
    if request.segments:
        rows += [("segment", "i64[sentences, places]", "token types")]
    return declare_inputs(rows)


def _linear(name: str, rows: str, columns: str, stored: str) -> list[StoredWeight]:
    """The matrix and the bias of a projection."""
    matrix = StoredWeight(f"w_{name}", f"{rows}, {columns}", f"{stored}.weight")
    return [matrix, StoredWeight(f"b_{name}", rows, f"{stored}.bias")]


def _norm(gain: str, bias: str, dims: str, stored: str) -> list[StoredWeight]:
    return [
        StoredWeight(gain, dims, f"{stored}.LayerNorm.weight"),
        StoredWeight(bias, dims, f"{stored}.LayerNorm.bias"),
    ]


def _list_weights(model: Encoder) -> tuple[list[StoredWeight], list[StoredWeight], list[StoredWeight]]:
    """The weights before the layers, those of a layer, and those after."""
    bert = "" if model.head == "hidden" else "bert."
    embeddings, at = f"{bert}embeddings", f"{bert}encoder.layer.{{i}}"
    before = [
        StoredWeight("words", "vocab, d_model", f"{embeddings}.word_embeddings.weight"),
        StoredWeight("place_table", "positions, d_model", f"{embeddings}.position_embeddings.weight"),
        StoredWeight("segment_table", "segments, d_model", f"{embeddings}.token_type_embeddings.weight"),
        *_norm("g_first", "b_first", "d_model", embeddings),
    ]
    layer = [
        *_linear("q", "heads, d_head", "d_model", f"{at}.attention.self.query"),
        *_linear("k", "heads, d_head", "d_model", f"{at}.attention.self.key"),
        *_linear("v", "heads, d_head", "d_model", f"{at}.attention.self.value"),
        *_linear("o", "d_model", "heads, d_head", f"{at}.attention.output.dense"),
        *_norm("g_attn", "b_attn", "d_model", f"{at}.attention.output"),
        *_linear("up", "d_ff", "d_model", f"{at}.intermediate.dense"),
        *_linear("down", "d_model", "d_ff", f"{at}.output.dense"),
        *_norm("g_mlp", "b_mlp", "d_model", f"{at}.output"),
    ]
    return before, layer, _list_head_weights(model)


def _list_head_weights(model: Encoder) -> list[StoredWeight]:
    if model.head == "words":
        cls = "cls.predictions"
        return [
            *_linear("t", "d_out", "d_model", f"{cls}.transform.dense"),
            *_norm("g_t", "c_t", "d_out", f"{cls}.transform"),
            StoredWeight("b_words", "vocab", f"{cls}.bias"),
            *([] if model.tied else [StoredWeight("w_words", "vocab, d_model", f"{cls}.decoder.weight")]),
        ]
    pooler = _linear("pool", "d_out", "d_model", "bert.pooler.dense") if model.head == "sequences" else []
    return [*pooler, *(_linear("labels", "labels", "d_model", "classifier") if model.labels else [])]


def _write_layer(model: Encoder, table: list[StoredWeight]) -> list[str]:
    return [
        "block layer(x, seen, i) {",
        *declare_weights(table, model.dtype, "    "),
        "",
        "    q[heads, tokens, d_head] = x[tokens, d_model] * w_q[heads, d_head, d_model]",
        "    k[heads, tokens, d_head] = x[tokens, d_model] * w_k[heads, d_head, d_model]",
        "    v[heads, tokens, d_head] = x[tokens, d_model] * w_v[heads, d_head, d_model]",
        "    a = attention(q + b_q, k + b_k, v + b_v, mask=seen, seq_lens=lengths)",
        "    o[tokens, d_model] = a[heads, tokens, d_head] * w_o[d_model, heads, d_head]",
        f"    n = layernorm(x + o + b_o, g_attn, b_attn, eps={model.eps!r})",
        "    up[tokens, d_ff] = n[tokens, d_model] * w_up[d_ff, d_model]",
        f"    f = {model.activation}(up + b_up)",
        "    down[tokens, d_model] = f[tokens, d_ff] * w_down[d_model, d_ff]",
        f"    return layernorm(n + down + b_down, g_mlp, b_mlp, eps={model.eps!r})",
        "}",
    ]


def _write_body(model: Encoder, request: ImportRequest) -> list[str]:
    lines = ["word = embedding(ids, words)", "place = slice(place_table, positions=[0, length])"]
    if request.segments:
        segment = "kind[sentences, places, d_model]"
        lines += ["kind = embedding(segment, segment_table)"]
    else:
        segment = "kind[d_model]"
        lines += ["kind[d_model] = sum[first](slice(segment_table, segments=[0, 1])[first, d_model])"]
    sum_of = f"word[sentences, places, d_model] + place[places, d_model] + {segment}"
    lines += [
        f"e[sentences, places, d_model] = {sum_of}",
        f"x = reshape(layernorm(e, g_first, b_first, eps={model.eps!r}), tokens=tokens, d_model=d_model)",
        "seen = reshape(mask, tokens=tokens)",
        "repeat n_layers as i { x = layer(x, seen, i) }",
        "",
    ]
    match model.head:
        case "words":
            table = "words" if model.tied else "w_words"
            lines += [
                "t[tokens, d_out] = x[tokens, d_model] * w_t[d_out, d_model]",
                f"u = layernorm({model.activation}(t + b_t), g_t, c_t, eps={model.eps!r})",
                f"guess[tokens, vocab] = u[tokens, d_model] * {table}[vocab, d_model]",
                "logits = reshape(guess + b_words, sentences=batch, places=length, vocab=vocab)",
                "output logits",
            ]
        case "tokens":
            lines += [
                "label[tokens, labels] = x[tokens, d_model] * w_labels[labels, d_model]",
                "logits = reshape(label + b_labels, sentences=batch, places=length, labels=labels)",
                "output logits",
            ]
        case "sequences":
            lines += [
                *_write_first_tokens(),
                "pool[sentences, d_out] = first[sentences, d_model] * w_pool[d_out, d_model]",
                "label[sentences, labels] = tanh(pool + b_pool)[sentences, d_model] * w_labels[labels, d_model]",
                "output logits = label + b_labels",
            ]
        case _:
            lines += _write_pooling(request)
    return lines


def _write_pooling(request: ImportRequest) -> list[str]:
    """The hidden states, or one vector per sentence."""
    if request.pool is None:
        return ["output hidden = reshape(x, sentences=batch, places=length, d_model=d_model)"]
    if request.pool == "mean":
        lines = ['pooled = meanpool(x, seen, seq_lens=lengths, into="sentences")']
    else:
        lines = [*_write_first_tokens(), "pooled = first"]
    if not request.normalize:
        return [*lines, "output embedding = pooled"]
    return [
        *lines,
        "square[sentences] = pooled[sentences, d_model] * pooled[sentences, d_model]",
        "output embedding = pooled / max(sqrt(square), 1e-12)",
    ]


def _write_first_tokens() -> list[str]:
    return [
        "hidden = reshape(x, sentences=batch, places=length, d_model=d_model)",
        "first[sentences, d_model] = sum[one](slice(hidden, places=[0, 1])[sentences, one, d_model])",
    ]
