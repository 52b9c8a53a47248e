"""The table of public reports, and the folders that they are tried with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from tests.support.generation_cases import byte_tokenizer, piece_tokenizer

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "importers" / "data" / "public_cases.json").read_text(encoding="utf-8")
)


def list_cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in CASES if case["kind"] == kind]


def write_tokenizer(kind: str, folder: Path) -> None:
    """A tokenizer.json: `bytes`, with three special tokens, or `pieces`, which may start texts with one."""
    tokenizer = byte_tokenizer() if kind == "bytes" else piece_tokenizer()
    if kind == "bytes":
        tokenizer.add_special_tokens(["<|start|>", "<|endoftext|>", "<|im_end|>"])
    elif kind == "pieces with a start":
        tokenizer.add_special_tokens(["<s>"])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
