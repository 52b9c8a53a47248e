"""`einc import gguf`, and `einc generate` with a GGUF file: they give what the folder gives that it was made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf")

from tests.support.gguf_models import STORIES, write_stories


def test_the_text_of_a_file_is_that_of_the_folder_that_it_was_made_of(einc: Callable[..., Any], tmp_path: Path) -> None:
    file = write_stories(tmp_path / "stories.gguf")
    texts = []
    for command, source in (("gguf", file), ("hf", STORIES), ("hf", file)):
        result = einc("import", command, source, "-o", tmp_path / "m.ein")
        assert result.code == 0, result.err
        texts.append((tmp_path / "m.ein").read_text().partition("\n")[2])
    assert texts[0] == texts[1] == texts[2]


def test_blocks_of_8_and_4_bits_are_weights_as_they_are_stored(einc: Callable[..., Any], tmp_path: Path) -> None:
    for kind, declared in (("Q8_0", "f16[d_ff, d_model] as i8(group=32)"), ("Q4_0", "as i4(group=32)")):
        file = write_stories(tmp_path / f"{kind}.gguf", kind)
        assert einc("import", "gguf", file, "-o", tmp_path / "m.ein").code == 0
        text = (tmp_path / "m.ein").read_text()
        assert declared in text
        table = next(line for line in text.splitlines() if "embed_tokens" in line)
        assert " as " not in table


def test_a_file_tells_the_story_of_its_folder(einc: Callable[..., Any], tmp_path: Path) -> None:
    file = write_stories(tmp_path / "stories.gguf", **{"tokenizer.chat_template": "{{ messages[0].content }} the owl"})
    result = einc("generate", file, "Mia", "--chat", "--max-tokens", 12, "--plans", tmp_path / "plans")
    assert result.code == 0, result.err
    assert len(result.out) > 20
    assert (STORIES / "owl.txt").read_text().startswith(result.out.rstrip())


def test_a_folder_may_have_the_tokenizer(einc: Callable[..., Any], tmp_path: Path) -> None:
    file = write_stories(tmp_path / "s.gguf", pre="unheard-of")
    command = ["generate", file, "Mia the owl", "--max-tokens", 3, "--plans", tmp_path / "plans"]
    refused = einc(*command)
    assert refused.code == 2
    assert "unheard-of" in refused.err
    assert "--tokenizer" in refused.err
    result = einc(*command, "--tokenizer", STORIES)
    assert result.code == 0, result.err
    assert (STORIES / "owl.txt").read_text().startswith(result.out.rstrip())
