"""Tiny encoders, encoder-decoders and vision models of transformers, with weights and inputs that are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tests.support.tiny_models import draw_ids, make_config, randomize

ENCODERS = (
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "esm", "eurobert",
    "ibert", "layoutlm", "longformer", "megatron-bert", "mobilebert", "modernbert", "mpnet", "nomic_bert", "rembert",
    "roberta", "roformer", "squeezebert", "xlm-roberta", "xlm-roberta-xl", "yoso",
)  # fmt: skip
ENCODER_DECODERS = (
    "bart", "blenderbot", "led", "longt5", "m2m_100", "marian", "mbart", "mt5", "mvp", "nllb-moe", "pegasus", "plbart",
    "prophetnet", "switch_transformers", "t5", "t5gemma", "umt5", "whisper",
)  # fmt: skip
PICTURES = (
    "beit", "bit", "clip", "convnext", "convnextv2", "data2vec-vision", "deit", "dinov2",
    "dinov2_with_registers", "focalnet", "ijepa", "mobilenet_v1",
    "mobilenet_v2", "mobilevit", "regnet", "resnet", "segformer",
    "siglip", "swiftformer", "swin", "swinv2", "vit", "vit_msn",
)  # fmt: skip
_SIZES: dict[str, Any] = {"image_size": 32, "patch_size": 8}
_STAGES: dict[str, Any] = {"depths": [1, 2], "hidden_sizes": [16, 24], "num_stages": 2, "out_features": None}
_WINDOWS: dict[str, Any] = {
    "image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
_TOWERS: dict[str, Any] = {
    "text_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
        "projection_dim": 24, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8, "projection_dim": 24,
    },
    "projection_dim": 24,
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    "clip": _TOWERS, "siglip": _TOWERS, "convnext": _STAGES, "convnextv2": _STAGES,
    "regnet": _STAGES | {"embedding_size": 8},
    "resnet": _STAGES | {"embedding_size": 8, "layer_type": "basic"},
    "bit": _STAGES | {"embedding_size": 32, "hidden_sizes": [32, 64]},
    "segformer": {
        "num_attention_heads": [1, 2], "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1],
        "hidden_sizes": [16, 24], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
    },
    "swin": _WINDOWS, "swinv2": _WINDOWS, "focalnet": _WINDOWS | {"focal_levels": [2, 2], "focal_windows": [3, 3]},
    "whisper": {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16},
    "distilbert": {"dim": 32, "hidden_dim": 48}, "longformer": {"attention_window": 4},
}  # fmt: skip


class Results(torch.nn.Module):
    """What a model makes of inputs by their names: its logits, or else its last hidden states and embeddings."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.names, tensors, strict=True)))
        keys = ("logits", "text_embeds", "image_embeds", "last_hidden_state", "pooler_output")
        return tuple(value for key in keys if isinstance(value := getattr(result, key, None), torch.Tensor))


def make_model(kind: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model of a kind of the lists, with random weights, and what it reads."""
    torch.manual_seed(0)
    config = make_config(kind, **(_SIZES if kind in PICTURES else {}) | FIELDS.get(kind, {}))
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        if part is not None and hasattr(part, "is_decoder") and kind in ENCODERS:
            part.is_decoder = False
    auto: Callable[..., torch.nn.Module] = transformers.AutoModel.from_config
    if kind in ENCODER_DECODERS:
        auto = transformers.AutoModelForSeq2SeqLM.from_config
    if kind == "whisper":
        auto = transformers.AutoModelForSpeechSeq2Seq.from_config
    model = randomize(auto(config).float().eval())
    ids = draw_ids()
    padded = torch.ones(ids.shape, dtype=torch.int64)
    padded[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": padded}
    if kind == "whisper":
        inputs = {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids}
    elif kind in ENCODER_DECODERS:
        inputs |= {"decoder_input_ids": draw_ids(2, 5)}
    elif kind in ("clip", "siglip"):
        inputs |= {"pixel_values": torch.randn(2, 3, 32, 32)}
    elif kind in PICTURES:
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    return Results(model, tuple(inputs)), tuple(inputs.values())
