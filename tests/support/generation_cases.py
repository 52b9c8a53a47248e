"""Folders of tiny decoders with tokenizers, and generators for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from einc.generation.decoder_plans import DecoderSizes, DecoderSource, find_plans
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.session import Session
from einc_runtime.generation.generator import Generator, open_sessions

DATA = Path(__file__).parents[1] / "reference" / "data"
PROMPTS = [[5, 3, 38, 12, 40, 7, 7], [9, 31, 4]]
"""Those of `tests/reference/make_references.py`."""


def expected_tokens(name: str) -> list[list[int]]:
    """What transformers generates after the prompts."""
    tokens: list[list[int]] = np.load(DATA / name / "expected.npz")["tokens"].tolist()
    return tokens


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, in the order of bytes."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(unprintable)}
    assert set(table) == set(letters)
    tokenizer = Tokenizer(models.BPE(vocab=table, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def piece_tokenizer() -> Tokenizer:
    """Words with a space before them, which is taken off a text's start, and bytes for all else, as Llama 2 has it."""
    words = ["<unk>", "<s>", "▁the", "▁cat", "▁sat", "▁", "a", "▁dog"]
    names = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(
        vocab={name: n for n, name in enumerate(names)}, merges=[], byte_fallback=True, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.add_special_tokens(["</s>"])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def word_tokenizer(size: int) -> Tokenizer:
    """The words w0, w1, ... are tokens."""
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def write_folder(target: Path, name: str = "llama-scaled") -> Path:
    """A copy of a committed model, with a tokenizer of words."""
    shutil.copytree(DATA / name, target)
    word_tokenizer(41).save(str(target / "tokenizer.json"))
    return target


def make_sessions(
    folder: Path, plans: Path, sizes: tuple[Any, ...], sites: int = 1, *, together: bool = True,
    reproducible: bool = False,
) -> list[Session]:  # fmt: skip
    """Sessions for so many sequences, places of each, lengths of pieces, and what else `DecoderSizes` has; `together`
    they share their memory."""
    config = (folder / "config.json").read_bytes()
    source = DecoderSource(config, "config.json", "model", list_stored_names(str(folder)))
    options = CompileOptions(
        machine="host", devices=sites, selector="eindecomp", schedule="naive", reproducible=reproducible
    )
    decoder_plans = find_plans(source, options, PlanCache(plans), DecoderSizes(*sizes), lambda _: None)
    bundles = [plan.bundle for plan in decoder_plans.every]
    if together:
        return open_sessions(bundles, str(folder), "cpu")
    return [session for bundle in bundles for session in open_sessions([bundle], str(folder), "cpu")]


def make_generator(
    folder: Path, plans: Path, batch: int, places: int, lengths: tuple[int, ...], sites: int = 1
) -> Generator:
    """A generator of a folder, without a tokenizer."""
    first, *further = make_sessions(folder, plans, (batch, places, lengths), sites)
    return Generator(first, further)
