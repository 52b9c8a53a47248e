"""GGUF files as models: logits are those of transformers, tokenizers exact, and what is not known is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

pytest.importorskip("gguf")

from einc.cli.model_folders import read_published_model
from einc.errors import ModelError
from einc_runtime.errors import ArrayFault, UsageFault
from einc_runtime.generation.model_folder import ModelFolder
from einc_runtime.generation.tokenizer import TextTokenizer
from tests.support import gguf_models, reference_plans

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "reference" / "data"
TEXTS = ["Mia the fox", " two  spaces ", "I'll pay 12345 pounds\n\n for it!", "naïve Ünïcode 漢字 🦊", "a\t\r\nb",
         "<|end|>x", "CamelCase HTTPServer", "''s 've", "", " "]  # fmt: skip


def write(name: str, target: Path, **options: Any) -> None:
    config, weights = gguf_models.read_folder(DATA / name)
    gguf_models.write_model(config, weights, target, **options)


@pytest.mark.parametrize("name", ["gemma", "phi3-partial"])
@pytest.mark.sampled(2)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.gguf"
    write(name, file)
    with np.load(DATA / name / "expected.npz") as archive:
        ids, expected = archive["ids"], archive["logits"]
    found = reference_plans.all_logits(file, tmp_path, 3, ids)
    assert np.abs(found - expected).max() < 1e-4


def test_rates_of_rotation_that_a_file_has_for_each_pair_are_those_of_the_text(tmp_path: Path) -> None:
    file, config = tmp_path / "m.gguf", json.loads((DATA / "llama-scaled" / "config.json").read_text())
    factors = gguf_models.llama3_factors(config)
    write("llama-scaled", file, factors=factors)
    rotation = json.loads(read_published_model(str(file)).config)["rope_scaling"]
    assert rotation["short_factor"] == factors["rope_freqs.weight"].tolist()
    assert 1.0 in rotation["short_factor"]
    assert 8.0 in rotation["short_factor"]


def train(pattern: str, texts: list[str], size: int = 420) -> Tokenizer:
    """A tokenizer of pairs of bytes whose texts are cut by a pattern, or as GPT-2's are."""
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, plain])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    trainer.show_progress = False
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
SPLITS = {"gpt-2": "", "llama-bpe": LLAMA3, "qwen2": LLAMA3.replace("{1,3}", "")}
"""The patterns of the tokenizers that Llama 3 and Qwen 2 published."""


@pytest.mark.parametrize("pre", SPLITS)
def test_a_tokenizer_of_bytes_is_the_one_that_the_file_was_made_of(pre: str, tmp_path: Path) -> None:
    tokenizer = train(SPLITS[pre], TEXTS * 3 + (ROOT / "README.md").read_text().splitlines())
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    document = json.loads(tokenizer.to_str())
    file = tmp_path / "t.gguf"
    entries = gguf_models.describe_byte_tokenizer(document, pre)
    write("gemma", file, further=entries)
    found = TextTokenizer(str(file))
    for text in [*TEXTS, (ROOT / "docs" / "importing.md").read_text(), "n\u0303 decomposed"]:
        tokens = tokenizer.encode(text).ids
        assert found.encode(text) == tokens, text
        assert found.decode(tokens) == tokenizer.decode(tokens)
    assert found.find_special("<|end|>") == 0


def test_what_ends_and_starts_texts_is_what_the_file_says(tmp_path: Path) -> None:
    special = {"bos_token_id": 5, "eos_token_id": 0, "eot_token_id": 9, "unknown_token_id": 7}
    further = {f"tokenizer.ggml.{name}": value for name, value in special.items()}
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "{{ bos_token }}!"}
    folder = ModelFolder(str(gguf_models.write_stories(tmp_path / "s.gguf", **{**further, **flags})))
    tokenizer = folder.read_tokenizer()
    assert tokenizer.encode("Mia")[0] == 5
    assert tokenizer.encode("Mia", special=False)[0] != 5
    assert folder.read_end_tokens(tokenizer) == (0, 9)
    template = folder.read_chat_template()
    assert (template.text, template.variables["bos_token"]) == ("{{ bos_token }}!", "%")
    assert folder.read_sampling().temperature == 0


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "'bert'"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
        ({"tokenizer.ggml.tokens": ["a" * 2000]}, "longer tokens"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "expected 400 numbers"),
    ],
)
def test_a_vocabulary_of_which_no_tokenizer_can_be_made_is_one_error(
    further: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = gguf_models.write_stories(tmp_path / "s.gguf", **further)
    with pytest.raises((UsageFault, ArrayFault), match=message):
        ModelFolder(str(file)).read_tokenizer()


@pytest.mark.parametrize(
    ("further", "message"),
    [
        ({"gemma.attention.sliding_window": 7}, "attention.sliding_window is 7"),
        ({"gemma.logit_scale": 0.5}, "'gemma.logit_scale', which einc does not know"),
        ({"gemma.rope.scaling.type": "su"}, "rope.scaling.type su"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"gemma.attention.causal": False}, "attention.causal is false"),
        ({"gemma.rope.scaling.type": "yarn", "gemma.rope.scaling.attn_factor": 1.5}, "attn_factor', which"),
        ({"general.architecture": "mamba"}, "architecture mamba"),
    ],
)
def test_what_may_change_the_computation_is_refused(further: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write("gemma", file, further=further)
    with pytest.raises(ModelError, match=message):
        read_published_model(str(file))


def test_tensors_of_other_architectures_and_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    write("gemma", file, factors={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
    with pytest.raises(ModelError, match=r"blk\.0\.attn_sinks"):
        read_published_model(str(file))
    write("gemma", file)
    data = file.read_bytes().replace(b"gemma.block_count", b"gemma.block_coun_")
    file.write_bytes(data)
    with pytest.raises(ModelError, match="block_count is missing"):
        read_published_model(str(file))
