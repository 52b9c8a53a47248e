"""Sequences over sessions: the tokens of transformers in pieces and batches, how texts end, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from einc_runtime.errors import ArrayFault, PlanFault, UsageFault
from einc_runtime.execution.session import Session
from einc_runtime.generation.generator import Generator
from einc_runtime.generation.sampling import Sampling
from tests.support.generation_cases import DATA, PROMPTS, expected_tokens, make_sessions
from tests.support.state_plans import compile_steps

NAME = "llama-scaled"


SIZES = 2, 19, (2, 4)
"""Two sequences at once, and prompts in pieces of up to 4 tokens."""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def generator(plans: Path) -> Generator:
    step, *pieces = make_sessions(DATA / NAME, plans, SIZES)
    assert all(piece.shares_states(step) for piece in pieces)
    return Generator(step, pieces)


def test_sessions_that_share_nothing_pass_caches_on(generator: Generator, plans: Path) -> None:
    """As on GPUs."""
    step, *pieces = make_sessions(DATA / NAME, plans, SIZES, together=False)
    assert not pieces[0].shares_states(step)
    prompts = [PROMPTS[1], *PROMPTS, PROMPTS[0]]
    assert Generator(step, pieces).generate(prompts, 6) == generator.generate(prompts, 6)


def test_plans_that_do_not_fit_together_are_refused(generator: Generator, plans: Path) -> None:
    _, piece, _ = make_sessions(DATA / NAME, plans, SIZES)
    with pytest.raises(PlanFault, match="takes one token of each sequence, found 2"):
        Generator(piece)
    other = Session(compile_steps(1), "cpu")
    with pytest.raises(PlanFault, match="steps is no decode step over blocks"):
        Generator(other)
    (larger,) = make_sessions(DATA / NAME, plans, (1, 19, ()))
    with pytest.raises(PlanFault, match="19 places of a sequence in 3 blocks, and another one 19 in 2"):
        Generator(larger, [piece])


def test_prompts_in_pieces_give_the_tokens_of_transformers(generator: Generator) -> None:
    found = generator.generate(PROMPTS, 10)
    assert [one.tokens for one in found] == expected_tokens(NAME)
    assert [one.ended for one in found] == ["length", "length"]
    assert [one.prompt_tokens for one in found] == [7, 3]


def test_sequences_start_where_others_end(generator: Generator) -> None:
    """Five prompts for two places: each is continued as if it was alone, whatever was in its cache before."""
    first, second = expected_tokens(NAME)
    prompts = [PROMPTS[1], PROMPTS[0], PROMPTS[1] + second[:4], PROMPTS[0] + first[:1], PROMPTS[1]]
    expected = [second[:6], first[:6], second[4:10], first[1:7], second[:6]]
    assert [one.tokens for one in generator.generate(prompts, 6)] == expected
    mixed = list(generator.stream(prompts, 6))
    assert [new.sequence for new in mixed[:4]] == [0, 1, 0, 1]
    for number, tokens in enumerate(expected):
        assert [new.token for new in mixed if new.sequence == number] == tokens


def test_a_text_that_is_left_frees_its_places(generator: Generator) -> None:
    stream = generator.stream(PROMPTS, 10)
    next(stream)
    stream.close()
    assert generator.generate(PROMPTS, 3)[1].tokens == expected_tokens(NAME)[1][:3]


def test_an_end_token_ends_a_text(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator._batch, "_end_tokens", frozenset([17]))
    found = generator.generate(PROMPTS, 10)
    assert found[0].tokens == expected_tokens(NAME)[0][:6]
    assert [one.ended for one in found] == ["stop", "length"]


def test_a_full_cache_ends_a_text(generator: Generator) -> None:
    """19 places: 7 tokens of a prompt leave room for 12, and the last one that is chosen needs none."""
    found = generator.generate(PROMPTS[:1], 99)
    assert (len(found[0].tokens), found[0].ended) == (13, "length")
    assert found[0].tokens[:10] == expected_tokens(NAME)[0]


def test_what_is_drawn_depends_on_seed_and_prompt_alone(generator: Generator) -> None:
    sampling = Sampling(1.5, 0.9, 7)
    together = generator.generate(PROMPTS, 8, sampling)
    assert generator.generate(PROMPTS[:1], 8, sampling)[0].tokens == together[0].tokens
    assert generator.generate(PROMPTS, 8, Sampling(1.5, 0.9, 8)) != together


def test_what_cannot_be_is_refused(generator: Generator) -> None:
    with pytest.raises(ArrayFault, match="prompt 1 has no tokens"):
        generator.generate([[1], []], 4)
    with pytest.raises(ArrayFault, match="prompt 0 has 20 tokens, and the caches have 19 places"):
        generator.generate([[1] * 20], 4)
    with pytest.raises(UsageFault, match="one new token at least"):
        generator.generate([[1]], 0)
    with pytest.raises(UsageFault, match="need a tokenizer"):
        generator.generate(["a text"], 4)
    assert [one.tokens for one in generator.generate(PROMPTS, 10)] == expected_tokens(NAME)
