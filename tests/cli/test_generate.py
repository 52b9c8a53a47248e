"""`einc generate`: plans are compiled once, texts are those of transformers, and what is missing is one error."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.generation_cases import DATA, PROMPTS, expected_tokens, write_folder

STORIES = Path(__file__).parents[2] / "models" / "stories"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


def words(tokens: list[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def test_prompts_are_continued_by_plans_that_are_kept(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    tokens = expected_tokens("llama-scaled")
    command = ["generate", folder, *map(words, PROMPTS), "--max-tokens", 10, "--plans", tmp_path / "plans"]
    first = einc(*command)
    assert first.code == 0
    assert first.out == f"[1] {words(tokens[0])}\n[2] {words(tokens[1])}\n"
    assert "2 plans compiled, kept in" in first.err
    again = einc(*command, "--json")
    assert again.err == ""
    document = again.json()
    assert [one["tokens"] for one in document["sequences"]] == tokens
    assert [one["compiled"] for one in document["plans"]] == [False, False]
    assert document["times"]["decode_tokens_per_s"] > 0
    assert document["memory_bytes"]["process"] > document["memory_bytes"]["plan"] > 0
    assert document["times"]["generate_ms"] > document["times"]["first_token_ms"] > 0
    step = Path(document["plans"][0]["file"])
    step.write_bytes(b"no plan")
    stopped = einc(
        "generate", folder, words(PROMPTS[0]), words(PROMPTS[1]), *command[4:], "--stop", words(tokens[0][3:6])
    )
    assert stopped.out.splitlines()[0] == f"[1] {words(tokens[0][:3])} "
    assert "1 plan compiled" in stopped.err  # the one that was broken
    assert einc("describe", step).code == 0


@pytest.mark.parametrize("sites", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_the_model_of_stories_tells_one(einc: Callable[..., Any], sites: int) -> None:
    """The command of the README; the story is one by the grammar that the model was trained on."""
    found = einc("generate", STORIES, "Mia the fox", "--sites", sites)
    assert found.code == 0, found.err
    specification = importlib.util.spec_from_file_location("stories", STORIES / "train.py")
    assert specification is not None
    assert specification.loader is not None
    stories = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(stories)
    assert stories.is_story(f"Mia the fox{found.out.rstrip()}"), found.out
    assert found.out == (STORIES / "fox.txt").read_text()
    assert not stories.is_story(f"Mia the fox{found.out.rstrip()}".replace("She likes", "He likes"))


def test_what_is_wrong_is_one_error(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[object], int, str]] = [
        ([tmp_path / "nowhere", "a"], 2, "there is no such file"),
        ([DATA / "llama-scaled", "a"], 2, "there is no tokenizer.json"),
        ([DATA / "bert-words", "1", "--ids"], 2, "means nothing for a BertForMaskedLM"),
        ([folder, "w1", "--chat"], 2, "there is no chat template"),
        ([folder, "w1", "--system", "x"], 2, "--system means nothing without --chat"),
        ([folder, "1,x", "--ids"], 2, "are no tokens"),
        ([folder, words([1] * 64)], 2, "the model reads texts of 64 at most"),
        ([folder, "w1", "--temperature", "-1"], 2, "expected a temperature from 0 on"),
        ([folder, "w1", "--machine", "none"], 2, "there is no machine"),
        ([folder, "w1", "--dtype", "f8"], 2, "expected a floating element type"),
        ([folder], 2, "Missing argument 'PROMPT...'"),
    ]
    for arguments, code, message in cases:
        found = einc("generate", *arguments)
        assert (found.code, message in found.err) == (code, True), (arguments, found)
