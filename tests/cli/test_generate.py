"""`einc generate`: plans are compiled once, texts are those of transformers, and what is missing is one error."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from einc.generation.plan_cache import hash_request
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
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
    assert first.out == f"[1]  {words(tokens[0])}\n[2]  {words(tokens[1])}\n"
    assert "2 plans compiled, kept in" in first.err
    again = einc(*command, "--json")
    assert again.err == ""
    document = again.json()
    assert [sequence["tokens"] for sequence in document["sequences"]] == tokens
    assert [plan["compiled"] for plan in document["plans"]] == [False, False]
    assert document["times"]["decode_tokens_per_s"] > 0
    assert document["memory_bytes"]["process"] > document["memory_bytes"]["plan"] > 0
    assert document["times"]["generate_ms"] > document["times"]["first_token_ms"] > 0
    step = Path(document["plans"][0]["file"])
    step.write_bytes(b"no plan")
    stopped = einc(
        "generate", folder, words(PROMPTS[0]), words(PROMPTS[1]), *command[4:], "--stop", words(tokens[0][3:6])
    )
    assert stopped.out.splitlines()[0] == f"[1]  {words(tokens[0][:3])} "
    assert "1 plan compiled" in stopped.err  # the one that was broken
    assert einc("describe", step).code == 0


@pytest.mark.parametrize("sites", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_the_model_of_stories_tells_one(einc: Callable[..., Any], sites: int) -> None:
    """The command of docs/generate.md; the story is one by the grammar that the model was trained on."""
    result = einc("generate", STORIES, "Mia the owl", "--sites", sites)
    assert result.code == 0, result.err
    specification = importlib.util.spec_from_file_location("stories", STORIES / "train.py")
    assert specification is not None
    assert specification.loader is not None
    stories = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(stories)
    assert stories.is_story(f"Mia the owl{result.out.rstrip()}"), result.out
    assert result.out == (STORIES / "owl.txt").read_text()
    assert not stories.is_story(f"Mia the owl{result.out.rstrip()}".replace("She likes", "He likes"))


def test_what_is_wrong_is_one_error(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[object], int, str]] = [
        ([tmp_path / "nowhere", "a"], 2, "there is no such file"),
        ([DATA / "llama-scaled", "a"], 2, "there is no tokenizer.json"),
        ([DATA / "bert-words", "1", "--ids"], 2, "means nothing for a BertForMaskedLM"),
        ([folder, "w1", "--chat"], 2, "there is no chat template"),
        ([folder, "w1", "--system", "x"], 2, "--system means nothing without --chat"),
        ([folder, "1,x", "--ids"], 2, "are no tokens"),
        ([folder, words([1] * 64)], 2, "the model reads texts of 64 at most"),
        ([folder, "w1", "--temperature", "-1"], 2, "expected a temperature from 0 to"),
        ([folder, "w1", "--machine", "none"], 2, "there is no machine"),
        ([folder, "w1", "--dtype", "f8"], 2, "expected a floating element type"),
        ([folder], 2, "Missing argument 'PROMPT...'"),
    ]
    for arguments, code, message in cases:
        result = einc("generate", *arguments)
        assert (result.code, message in result.err) == (code, True), (arguments, result)


@pytest.mark.slow
def test_what_sharing_costs_is_said(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    command = ["generate", folder, words(PROMPTS[0]), "--max-tokens", 2, "--sites", 2, "--plans", tmp_path / "plans"]
    plain, priced = einc(*command, "--json").json(), einc(*command, "--price-pins", "--json")
    assert all(plan["unrestricted_ms"] is None and plan["predicted_ms"] > 0 for plan in plain["plans"])
    step, piece = priced.json()["plans"]
    assert step == plain["plans"][0] | {"compiled": False}
    assert step["unrestricted_ms"] is None
    assert piece["compiled"]
    assert piece["unrestricted_ms"] > 0
    ratio = piece["predicted_ms"] / piece["unrestricted_ms"]
    assert f"ms predicted, {ratio:.2f} times the" in priced.err
    assert priced.json()["sequences"] == plain["sequences"]
    assert "1 plan compiled" not in einc(*command, "--price-pins", "--json").err


def test_plans_that_say_what_pins_cost_are_other_plans() -> None:
    options = CompileOptions("host", 1, price_pins=True)
    pinned = replace(options, pins=(parse_pin("y=whole"),))
    assert hash_request("", options) == hash_request("", replace(options, price_pins=False))
    assert hash_request("", pinned) != hash_request("", replace(pinned, price_pins=False))


def test_a_model_that_is_to_be_drawn_from_is(einc: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    command = ["generate", folder, words(PROMPTS[0]), "--max-tokens", 6, "--seed", 3, "--plans", tmp_path / "plans"]
    greedy = einc(*command).out
    settings = folder / "generation_config.json"
    before = settings.read_text() if settings.exists() else None
    try:
        settings.write_text('{"temperature": 30.0, "top_p": 1.0}')
        assert einc(*command).out == greedy
        settings.write_text('{"do_sample": true, "temperature": 30.0, "top_p": 1.0}')
        assert einc(*command).out != greedy
        assert einc(*command, "--temperature", "0").out == greedy
        assert einc(*command, "--top-p", "1e-9").out == greedy
        settings.write_text('{"do_sample": true, "temperature": -1}')
        result = einc(*command)
        assert (result.code, "generation_config.json" in result.err) == (65, True)
    finally:
        settings.unlink()
        if before is not None:
            settings.write_text(before)
