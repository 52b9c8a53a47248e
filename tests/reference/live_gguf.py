"""GGUF files against transformers: logits of each family and type of blocks, and tokenizers made of vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

from einc_runtime.generation.tokenizer import TextTokenizer
from tests.support import gguf_models, reference_models, reference_plans

ROOT = Path(__file__).parents[2]
SIZES = {
    "vocab_size": 41, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
"""Rows are multiples of 256, as blocks of the types called K have them."""
_LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_MOE = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-scaled": ("Llama", {"rope_parameters": _LLAMA3, "head_dim": 64, "attention_bias": True, "mlp_bias": True,
                               "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 64}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, **_MOE}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 64, "attention_bias": True}),
    "qwen3-moe": ("Qwen3Moe", {"num_experts": 7, "moe_intermediate_size": 256, "head_dim": 64, "norm_topk_prob": True,
                               **_MOE}),
    "phi3": ("Phi3", {"pad_token_id": None, "sliding_window": 5, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}}),
    "phi3-long": ("Phi3", {"pad_token_id": None, "original_max_position_embeddings": 40, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1 + n / 8 for n in range(16)],
        "long_factor": [2.0 + n for n in range(16)]}}),
    "gemma": ("Gemma", {"head_dim": 64, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {"head_dim": 64, "num_hidden_layers": 3, "sliding_window": 4, "query_pre_attn_scalar": 64,
                          "attn_logit_softcapping": 0.9, "final_logit_softcapping": 3.0,
                          "attn_implementation": "eager"}),
    "gemma3": ("Gemma3Text", {"head_dim": 64, "num_hidden_layers": 7, "sliding_window": 4, "query_pre_attn_scalar": 64,
                              "rope_parameters": {"full_attention": _LINEAR, "sliding_attention": {
                                  "rope_type": "default", "rope_theta": 1e4}}}),
    "olmo2": ("Olmo2", {"pad_token_id": None, "attention_bias": True}),
}  # fmt: skip
KINDS = {
    "F16": {}, "BF16": {}, "Q8_0": {}, "Q4_0": {"down_proj": "Q4_1", "embed": "Q6_K"}, "Q5_0": {"v_proj": "Q5_1"},
    "Q4_K": {"layers.0.self_attn.v": "Q6_K", "down_proj": "Q6_K", "embed": "Q6_K"}, "Q5_K": {"v_proj": "Q8_0"},
}  # fmt: skip
"""Types of files as llama-quantize mixes them."""
IDS = np.random.default_rng(3).integers(0, SIZES["vocab_size"], (2, 11))


def write(name: str, work: Path, kind: str, kinds: dict[str, str]) -> tuple[Any, Path]:
    """The model of transformers with the weights that the file has, and the file."""
    reference_models.FURTHER[name] = FAMILIES[name]
    reference_models.DECODERS.pop(name, None)
    model = reference_models.make(name, work / "folder", SIZES)
    config, weights = gguf_models.read_folder(work / "folder")
    factors: dict[str, Any] = {}
    if name == "llama-scaled":
        factors = gguf_models.llama3_factors(config)
    elif name == "phi3-long":
        lists = {length: config["rope_parameters"][f"{length}_factor"] for length in ("short", "long")}
        factors = {f"rope_factors_{length}.weight": np.array(of, np.float32) for length, of in lists.items()}
    file = work / f"{name}-{kind}.gguf"
    rounded = gguf_models.write_model(config, weights, file, kind, kinds, factors=factors)
    safe = work / "rounded"
    safe.mkdir()
    from safetensors.numpy import save_file

    save_file({tensor: np.ascontiguousarray(array) for tensor, array in rounded.items()}, safe / "model.safetensors")
    (safe / "config.json").write_text((work / "folder" / "config.json").read_text())
    loaded = type(model).from_pretrained(safe, dtype=torch.float32, attn_implementation="eager").eval()
    return loaded, file


def compute(file: Path, work: Path, sites: int) -> Any:
    """All logits by einc, in f32."""
    work.mkdir(exist_ok=True)
    batch, tokens = IDS.shape
    options = ("--logits", "all", "--batch", batch, "--tokens", tokens)
    opened = reference_plans.session(file, work, sites, *options, step=("--dtype", "f32"))
    return reference_plans.outputs(opened, ids=IDS.reshape(-1))["logits"].reshape(batch, tokens, -1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_a_family_are_those_of_transformers(name: str, kind: str, tmp_path: Path) -> None:
    model, file = write(name, tmp_path, kind, {})
    found = compute(file, tmp_path / "plans", 1 + list(FAMILIES).index(name) % 3)
    assert np.abs(found - reference_models.logits(model, input_ids=IDS)).max() < 3e-4


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_a_type_of_blocks_are_those_of_transformers(name: str, kind: str, tmp_path: Path) -> None:
    model, file = write(name, tmp_path, kind, KINDS[kind])
    found = compute(file, tmp_path / "plans", 3)
    assert np.abs(found - reference_models.logits(model, input_ids=IDS)).max() < 3e-4


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_logits_are_those_of_transformers_that_reads_the_file(name: str, kind: str, tmp_path: Path) -> None:
    """Other families it reads otherwise than llama.cpp: without soft caps and biases, with other widths of heads."""
    _, file = write(name, tmp_path, kind, KINDS[kind])
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    found = compute(file, tmp_path / "plans", 2)
    assert np.abs(found - reference_models.logits(loaded.eval(), input_ids=IDS)).max() < 3e-4


TEXTS = [
    "Mia the fox", " two  spaces ", "I'll pay 12345 pounds\n\n for it!", "naïve Ünïcode 漢字 🦊", "a\t\r\nb",
    "x<|end|>y", "HTTPServer isn't", "''s 've", " ", "<think>a</think> b", "    four", "n\u0303",
    "<unused> tag <s>", "2024-01-01",
]  # fmt: skip
WORDS = (ROOT / "README.md").read_text().splitlines() * 2 + TEXTS


def write_vocabulary(work: Path, architecture: str, entries: dict[str, Any]) -> Path:
    """A file of a model of some architecture, whose sizes do not matter."""
    work.mkdir(exist_ok=True)
    config, weights = gguf_models.read_folder(ROOT / "models" / "stories")
    file = work / f"{architecture}.gguf"
    gguf_models.write_model(config | {"model_type": architecture}, weights, file, further=entries)
    return file


def compare(file: Path) -> None:
    """Both tokenizers of a file cut all texts alike, and make the same texts of tokens."""
    architecture, described, _ = get_gguf_tokenizer(str(file))
    known, _ = convert_gguf_tokenizer(architecture, described)
    found = TextTokenizer(str(file))
    for text in [*TEXTS, (ROOT / "docs" / "importing.md").read_text()]:
        tokens = known.encode(text, add_special_tokens=False).ids
        assert found.encode(text, special=False) == tokens, text
        assert found.decode(tokens, special=True) == known.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "tekken"])
def test_tokenizers_of_bytes_are_those_of_transformers(pre: str, tmp_path: Path) -> None:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|end|>", "<think>", "</think>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=alphabet)
    )
    entries = gguf_models.describe_byte_tokenizer(json.loads(trained.to_str()), pre)
    entries["tokenizer.ggml.token_type"][1:3] = [4, 4]  # of the user's, not special
    compare(write_vocabulary(tmp_path, "llama", entries))


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_tokenizers_of_pieces_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", "<unused>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.add_special_tokens([AddedToken(name) for name in special[:3]])
    trained.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=900, special_tokens=special))
    vocabulary = trained.get_vocab()
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [
        {"<unk>": 2, "<s>": 3, "</s>": 3, "<unused>": 4}.get(name, 6 if name.startswith("<0x") else 1) for name in names
    ]
    entries = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [float(-n) for n in range(len(names))], "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    compare(write_vocabulary(tmp_path, architecture, entries))
