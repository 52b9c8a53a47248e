"""What the importers of all families share: the user's request, bounds, and fields of every configuration."""

from __future__ import annotations

from dataclasses import dataclass

from einc.core.tensor import FLOAT_NAMES
from einc.importers.config import ConfigFields
from einc_runtime.strict_json import describe_json


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The options of `einc import hf`; None and empty values leave a choice to the importer.

    `tokens` of each of `batch` sequences come with a run. A decoder returns the logits of the `last` token of each
    sequence, the default, or of `all`, and its `caches`, the keys and values of each layer, if they are wanted. An
    encoder's `pool` is mean or cls, `normalize` scales the pooled vectors to length 1, and `segments` makes token types
    an input.
    """

    batch: int = 1
    tokens: int | None = None
    caches: bool = False
    logits: str | None = None
    pool: str | None = None
    normalize: bool = False
    segments: bool = False
    ignored: tuple[str, ...] = ()


MAX_EXTENT = 2**24
"""The largest extent of a dimension that is not a vocabulary or a length; the largest models have 2**17."""
MAX_POSITIONS = 2**31
"""The largest vocabulary, length or number of positions."""
MAX_LAYERS = 1000
ENCODED_TOKENS = 128
"""Tokens of a text that an encoder reads, where nothing is said: a sentence or two."""

ACTIVATION_NAMES = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "tanh": "tanh",
}  # fmt: skip
"""What a name of an activation in a configuration is called in the operator library."""

HARMLESS_FIELDS = (
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "attention_dropout",
    "attention_probs_dropout_prob", "auto_map", "begin_suppress_tokens", "bos_token_id", "classifier_dropout",
    "decoder_start_token_id", "eos_token_id", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout_prob", "id2label", "initializer_range", "label2id", "max_length",
    "min_length", "model_max_length", "output_attentions", "output_hidden_states", "output_scores", "pad_token_id",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "prefix", "pretraining_tp", "problem_type", "remove_invalid_values", "return_dict", "return_dict_in_generate",
    "sep_token_id", "directionality", "suppress_tokens", "task_specific_params", "temperature", "tokenizer_class",
    "top_k", "top_p", "torchscript", "transformers_version", "unsloth_version", "use_bfloat16", "use_cache",
)  # fmt: skip
"""Fields that do not change what a forward pass computes: training, generation, labels and housekeeping.

`auto_map` names code that comes with a model; none is ever run, and the architecture alone decides what is computed.
"""


def read_element_type(fields: ConfigFields) -> str:
    """The type of the weights."""
    value = fields.value("dtype", "torch_dtype")
    if value in (None, "auto"):
        fields.note(
            f"dtype is {'not given' if value is None else 'auto'}: float32, which holds weights of 16 bits exactly"
        )
        return "f32"
    if isinstance(value, str):
        value = value.removeprefix("torch.")
        if value in FLOAT_NAMES:
            return FLOAT_NAMES[value]
    fields.fail(f"dtype: {describe_json(value)} is not supported", f"supported are {', '.join(FLOAT_NAMES)}")
    return "f32"


def refuse_other_forms(fields: ConfigFields) -> None:
    """Notes a problem for each field, common to all families, that asks for something no importer supports."""
    fields.require("is_encoder_decoder", (False,), "encoder-decoder models are not")
    fields.require("add_cross_attention", (False,), "cross attention is not")
    fields.require("chunk_size_feed_forward", (0,), "chunks of the feed-forward part are not")
