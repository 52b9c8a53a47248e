"""Checkpoints of narrow floats against transformers, which dequantizes them: FP8 with scales of blocks, and MXFP4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from einc.core.tensor import DType, TensorDesc
from einc.ops.dequantize import QuantizedForm, widen_values
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.data.weights import read_weights
from einc_runtime.plan.element_types import STORED_FORMS
from einc_runtime.plan.schema import Tensor
from tests.support import reference_models, reference_plans

SIZES = {
    "vocab_size": 41, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
BLOCK = 128
LARGEST = 448.0
"""Of the floats with 4 bits of an exponent."""


def round_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats of 8 bits with a scale for each block, as DeepSeek's converter makes them."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).transpose(1, 2)
    scales = blocks.abs().amax((-1, -2)) / LARGEST
    values = (blocks / scales[..., None, None]).transpose(1, 2).reshape(rows, columns)
    return values.to(torch.float8_e4m3fn), scales


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "qwen3-moe"])
def test_a_checkpoint_of_fp8_has_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    reference_models.FURTHER["mixtral"] = (
        "Mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "experts_implementation": "eager"},
    )
    reference_models.DECODERS["qwen3"] = ("Qwen3", {"head_dim": 64})
    experts = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 128, "head_dim": 64}
    reference_models.FURTHER["qwen3-moe"] = ("Qwen3Moe", {**experts, "experts_implementation": "eager"})
    reference_models.make(name, tmp_path / "wide", SIZES)
    from safetensors.torch import load_file

    stored: dict[str, torch.Tensor] = {}
    for tensor, weight in load_file(tmp_path / "wide" / "model.safetensors").items():
        if ("_proj.weight" in tensor or ".experts." in tensor) and all(n % BLOCK == 0 for n in weight.shape):
            stored[tensor], stored[f"{tensor}_scale_inv"] = round_blocks(weight)
        else:
            stored[tensor] = weight
    assert sum("_scale_inv" in tensor for tensor in stored) >= 8
    folder = tmp_path / "narrow"
    folder.mkdir()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    kept = sorted(
        {
            tensor.removesuffix(".weight")
            for tensor in stored
            if f"{tensor}_scale_inv" not in stored and "_proj.weight" in tensor
        }
    )
    described = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    described |= {"modules_to_not_convert": [*kept, "lm_head"]} if kept else {}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described}))
    settings = transformers.FineGrainedFP8Config(dequantize=True)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=settings, dtype=torch.float32, attn_implementation="eager"
    )
    ids = np.random.default_rng(3).integers(0, 41, (2, 9))
    found = reference_plans.all_logits(folder, tmp_path, 3, ids)
    assert np.abs(found - reference_models.logits(model.eval(), input_ids=ids)).max() < 3e-4


def test_tensors_of_mxfp4_are_those_of_transformers(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    blocks = torch.tensor(rng.integers(0, 256, (3, 10, 4, 16), dtype=np.uint8))
    scales = torch.tensor(rng.integers(110, 140, (3, 10, 4), dtype=np.uint8))
    name = "model.layers.0.mlp.experts.down_proj"
    save_file({f"{name}_blocks": blocks, f"{name}_scales": scales}, tmp_path / "model.safetensors")
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    form = QuantizedForm(STORED_FORMS["mxfp4"], 32)
    operands = form.operands(TensorDesc(("experts", "rows", "columns"), (3, 10, 128), DType.F32))
    parts = read_weights(
        [
            Tensor(end, operand.dims, operand.shape, operand.dtype.value, "weight", f"{layout}{name}{end}")
            for layout, end, operand in zip(("packed:", ""), ("_blocks", "_scales"), operands, strict=True)
        ],
        tmp_path,
    )
    widened = widen_values(form, (parts["_blocks"], parts["_scales"]), DType.F32)
    assert np.array_equal(widened.swapaxes(1, 2), expected)
    names = list_stored_names(str(tmp_path))
    assert names is not None
    assert name in names
