"""A folder of a tiny encoder with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from tests.support.generation_cases import word_tokenizer

CONFIG = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 24, "num_attention_heads": 3,
    "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 50, "max_position_embeddings": 40,
    "torch_dtype": "float32",
}  # fmt: skip


def write_encoder(folder: Path) -> None:
    """Random weights of a small BertModel under the names of published ones, and a tokenizer of 50 words."""
    random = np.random.default_rng(4)
    shapes = {"word_embeddings": (50, 24), "position_embeddings": (40, 24), "token_type_embeddings": (2, 24)}
    arrays = {f"embeddings.{name}.weight": shape for name, shape in shapes.items()}
    norms = ["embeddings.LayerNorm"]
    for at in (f"encoder.layer.{layer}." for layer in range(2)):
        norms += [f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"]
        sizes = {f"attention.{name}": (24, 24) for name in ("self.query", "self.key", "self.value", "output.dense")}
        sizes |= {"intermediate.dense": (40, 24), "output.dense": (24, 40)}
        arrays |= {f"{at}{name}.weight": shape for name, shape in sizes.items()}
        arrays |= {f"{at}{name}.bias": shape[:1] for name, shape in sizes.items()}
    arrays |= {f"{norm}.{part}": (24,) for norm in norms for part in ("weight", "bias")}
    values = {name: random.normal(size=shape).astype("f4") / 3 for name, shape in arrays.items()}
    safetensors.numpy.save_file(values, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    word_tokenizer(50).save(str(folder / "tokenizer.json"))
