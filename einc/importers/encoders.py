"""Encoders of the BERT family: hidden states, pooled sentence embeddings, or the logits of the published heads."""

from __future__ import annotations

from dataclasses import dataclass

from einc.importers.common import ACTIVATIONS, EXTENT, LAYERS, LONGEST, element_type, refuse_other_forms
from einc.importers.fields import Fields
from einc.importers.request import Request
from einc.importers.stored import Stored
from einc.importers.writing import Weight, comment, inputs, numbers, weights

ARCHITECTURES = {
    "BertModel": "hidden",
    "BertForMaskedLM": "words",
    "BertForSequenceClassification": "sequences",
    "BertForTokenClassification": "tokens",
}
"""What each computes in the end."""

FOREIGN = ("decode", "cache", "logits")
"""What a request for an encoder cannot have."""

_PLANNED = 128  # tokens of a sequence, where nothing is asked


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder's numbers; `head` is a value of ARCHITECTURES."""

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


def read(fields: Fields, head: str) -> Encoder:
    """The encoder that a configuration describes; problems are noted in the fields."""
    d_model = fields.integer("hidden_size", EXTENT)
    heads = fields.integer("num_attention_heads", EXTENT)
    if d_model % heads:
        fields.fail(f"hidden_size: expected a multiple of the {heads} num_attention_heads, found {d_model}")
    refuse_other_forms(fields)
    fields.must_be("is_decoder", (False,), "an encoder sees in both directions")
    fields.must_be("position_embedding_type", ("absolute",), "positions are embedded by a table")
    return Encoder(
        head=head,
        dtype=element_type(fields),
        n_layers=fields.integer("num_hidden_layers", LAYERS),
        d_model=d_model,
        heads=heads,
        d_ff=fields.integer("intermediate_size", EXTENT),
        vocab=fields.integer("vocab_size", LONGEST),
        longest=fields.integer("max_position_embeddings", LONGEST, 512),
        segments=fields.integer("type_vocab_size", LONGEST, 2),
        labels=_labels(fields) if head in ("sequences", "tokens") else 0,
        eps=fields.real("layer_norm_eps", 1e-12, most=1.0),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        tied=fields.flag("tie_word_embeddings", True) if head == "words" else _either(fields),
    )


def _labels(fields: Fields) -> int:
    named = fields.value("id2label")
    if isinstance(named, dict) and named:
        return len(named)
    return fields.integer("num_labels", EXTENT, 2)


def _either(fields: Fields) -> bool:
    """Whether weights are tied means nothing where there is no head of words."""
    fields.value("tie_word_embeddings")
    return True


def text(model: Encoder, request: Request, stored: Stored, name: str, fields: Fields) -> list[str]:
    """The lines of the model's text after its heading."""
    if model.head != "hidden" and (request.pool or request.normalize):
        fields.fail("only a BertModel is pooled; this one has a head of its own")
    tokens = request.tokens or min(_PLANNED, model.longest)
    if tokens > model.longest:
        fields.fail(f"{tokens:,} tokens are more than its max_position_embeddings, {model.longest:,}")
    before, layer, after = (_spelled(stored, table) for table in _weights(model))
    stored.check([([*before, *after], 1), (layer, model.n_layers)])
    return [
        *_heading(request),
        f"model {name}",
        "",
        *_numbers(model, request, tokens),
        "",
        *_inputs(request),
        "",
        *weights([*before, *after], model.dtype),
        "",
        *_layer(model, layer),
        "",
        *_body(model, request),
    ]


def _spelled(stored: Stored, table: list[Weight]) -> list[Weight]:
    """Files of a model with a head name its encoder `bert.`, others do not; old ones say gamma and beta."""

    def plain(name: str) -> str:
        return name.removeprefix("bert.")

    def prefixed(name: str) -> str:
        return name if name.startswith(("bert.", "cls.", "classifier.")) else f"bert.{name}"

    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    ways = (plain, prefixed, old, lambda name: old(plain(name)), lambda name: old(prefixed(name)))
    return stored.spelling(table, *ways)


def _heading(request: Request) -> list[str]:
    lines = ["`mask` is true where a sentence has a token and false where it is filled up."]
    if not request.segments:
        lines += ["All tokens are of the first segment (token type 0)."]
    return comment(*lines)


def _numbers(model: Encoder, request: Request, tokens: int) -> list[str]:
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
    return [*numbers("param", params), "", *numbers("dim", dims)]


def _inputs(request: Request) -> list[str]:
    rows = [("ids", "i64[sentences, places]", ""), ("mask", "bool[sentences, places]", "")]
    if request.segments:
        rows += [("segment", "i64[sentences, places]", "token types")]
    return inputs(rows)


def _weights(model: Encoder) -> tuple[list[Weight], list[Weight], list[Weight]]:
    """The weights before the layers, those of a layer, and those after."""
    bert = "" if model.head == "hidden" else "bert."
    embeddings, at = f"{bert}embeddings.", f"{bert}encoder.layer.{{i}}."
    own = f"{at}attention.self."
    before = [
        Weight("words", "vocab, d_model", f"{embeddings}word_embeddings.weight"),
        Weight("place_table", "positions, d_model", f"{embeddings}position_embeddings.weight"),
        Weight("segment_table", "segments, d_model", f"{embeddings}token_type_embeddings.weight"),
        Weight("g_first", "d_model", f"{embeddings}LayerNorm.weight"),
        Weight("b_first", "d_model", f"{embeddings}LayerNorm.bias"),
    ]
    layer = []
    for short, long in (("q", "query"), ("k", "key"), ("v", "value")):
        layer += [
            Weight(f"w_{short}", "heads, d_head, d_model", f"{own}{long}.weight"),
            Weight(f"b_{short}", "heads, d_head", f"{own}{long}.bias"),
        ]
    layer += [
        Weight("w_o", "d_model, heads, d_head", f"{at}attention.output.dense.weight"),
        Weight("b_o", "d_model", f"{at}attention.output.dense.bias"),
        Weight("g_attn", "d_model", f"{at}attention.output.LayerNorm.weight"),
        Weight("b_attn", "d_model", f"{at}attention.output.LayerNorm.bias"),
        Weight("w_up", "d_ff, d_model", f"{at}intermediate.dense.weight"),
        Weight("b_up", "d_ff", f"{at}intermediate.dense.bias"),
        Weight("w_down", "d_model, d_ff", f"{at}output.dense.weight"),
        Weight("b_down", "d_model", f"{at}output.dense.bias"),
        Weight("g_mlp", "d_model", f"{at}output.LayerNorm.weight"),
        Weight("b_mlp", "d_model", f"{at}output.LayerNorm.bias"),
    ]
    return before, layer, _head_weights(model)


def _head_weights(model: Encoder) -> list[Weight]:
    if model.head == "words":
        cls = "cls.predictions."
        table = [
            Weight("w_t", "d_out, d_model", f"{cls}transform.dense.weight"),
            Weight("b_t", "d_out", f"{cls}transform.dense.bias"),
            Weight("g_t", "d_out", f"{cls}transform.LayerNorm.weight"),
            Weight("c_t", "d_out", f"{cls}transform.LayerNorm.bias"),
            Weight("b_words", "vocab", f"{cls}bias"),
        ]
        return table if model.tied else [*table, Weight("w_words", "vocab, d_model", f"{cls}decoder.weight")]
    table = []
    if model.head == "sequences":
        table += [
            Weight("w_pool", "d_out, d_model", "bert.pooler.dense.weight"),
            Weight("b_pool", "d_out", "bert.pooler.dense.bias"),
        ]
    if model.labels:
        table += [
            Weight("w_labels", "labels, d_model", "classifier.weight"),
            Weight("b_labels", "labels", "classifier.bias"),
        ]
    return table


def _layer(model: Encoder, table: list[Weight]) -> list[str]:
    return [
        "block layer(x, seen, i) {",
        *weights(table, model.dtype, "    "),
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


def _body(model: Encoder, request: Request) -> list[str]:
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
                *_first_tokens(),
                "pool[sentences, d_out] = first[sentences, d_model] * w_pool[d_out, d_model]",
                "label[sentences, labels] = tanh(pool + b_pool)[sentences, d_model] * w_labels[labels, d_model]",
                "output logits = label + b_labels",
            ]
        case _:
            lines += _pooled(request)
    return lines


def _pooled(request: Request) -> list[str]:
    """The hidden states, or one vector per sentence."""
    if request.pool is None:
        return ["output hidden = reshape(x, sentences=batch, places=length, d_model=d_model)"]
    if request.pool == "mean":
        lines = ['pooled = meanpool(x, seen, seq_lens=lengths, into="sentences")']
    else:
        lines = [*_first_tokens(), "pooled = first"]
    if not request.normalize:
        return [*lines, "output embedding = pooled"]
    return [
        *lines,
        "square[sentences] = pooled[sentences, d_model] * pooled[sentences, d_model]",
        "output embedding = pooled / max(sqrt(square), 1e-12)",
    ]


def _first_tokens() -> list[str]:
    return [
        "hidden = reshape(x, sentences=batch, places=length, d_model=d_model)",
        "first[sentences, d_model] = sum[one](slice(hidden, places=[0, 1])[sentences, one, d_model])",
    ]
