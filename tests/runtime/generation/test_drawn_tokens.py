"""Tokens that plans draw where the logits are: those that are drawn from the logits on the host."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from einc_runtime.generation.draws import DrawSettings, draw, find_keys
from einc_runtime.generation.sampling import GREEDY, Sampling
from einc_runtime.generation.sequence_batch import NewToken, SequenceBatch, SequenceRequest
from einc_runtime.generation.slots import DecoderSlots
from tests.support.generation_cases import DATA, PROMPTS, make_sessions

NAME = "llama-scaled"
WAYS = [Sampling(0.8, seed=3), GREEDY, Sampling(1.5, 0.7, 5, top_k=9), Sampling(2.0, seed=9, min_p=0.3)]


def make_tokens(slots: DecoderSlots, ways: list[Sampling]) -> list[list[NewToken]]:
    """Ten tokens of each of four sequences, two of which run at once."""
    batch = SequenceBatch(slots)
    requests = [SequenceRequest(PROMPTS[n % 2], 10, how, number=n) for n, how in enumerate(ways)]
    tokens: list[list[NewToken]] = [[] for _ in requests]
    for first in (0, 2):
        for slot in (0, 1):
            assert batch.start(slot, requests[first + slot])
        for progress in (progress for _ in range(13) for progress in batch.advance()):
            assert isinstance(progress.result, NewToken)
            tokens[progress.result.sequence].append(progress.result)
    assert [len(made) for made in tokens] == [10] * len(ways)
    return tokens


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[DecoderSlots, DecoderSlots]:
    """Slots whose plans draw, and slots whose logits come to the host."""
    folder = tmp_path_factory.mktemp("plans")
    found = []
    for draws in (True, False):
        step, *pieces = make_sessions(DATA / NAME, folder, (2, 19, (4,), (), None, draws))
        found.append(DecoderSlots(step, pieces))
    return found[0], found[1]


def test_plans_draw_what_the_host_draws(both: tuple[DecoderSlots, DecoderSlots]) -> None:
    assert [slots.draws for slots in both] == [True, False]
    assert make_tokens(both[0], WAYS) == make_tokens(both[1], WAYS)


def test_a_step_runs_again_where_the_list_is_too_short(
    both: tuple[DecoderSlots, DecoderSlots], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no token was known, whatever the plan has drawn."""
    run = DecoderSlots._run

    def run_without_list(self, plan, rows, outputs, draws):
        results = run(self, plan, rows, outputs, draws)
        return {slot: (-1, *values[1:]) if draws else values for slot, values in results.items()}

    monkeypatch.setattr(DecoderSlots, "_run", run_without_list)
    assert make_tokens(both[0], WAYS) == make_tokens(both[1], WAYS)


def test_keys_give_every_step_other_numbers() -> None:
    """Each token comes as often as its probability says: of one sequence step by step, and of many at one step."""
    logits = np.log(np.array([0.3, 0.05, 0.4, 0.25], "f4"))
    settings = DrawSettings.of(1.0, 1.0, 0.0, 0)
    for keys in ([find_keys(12345, n) for n in range(3000)], [find_keys(n << 40 | n, 7) for n in range(3000)]):
        shares = np.bincount([draw(logits, settings, each) for each in keys], minlength=4) / 3000
        assert np.abs(shares - np.exp(logits)).max() < 0.035
        assert len(set(keys)) == 3000


def test_settings_are_those_of_a_request() -> None:
    how = dataclasses.replace(WAYS[2], min_p=0.5)
    settings = DrawSettings.of(how.temperature, how.top_p, how.min_p, how.top_k)
    assert settings == (1 / 1.5, 0.7, pytest.approx(np.log(0.5)), 9)
    assert DrawSettings.of(0.0, 0.5, 0.5, 40) == (1.0, 1.0, -np.inf, 1)
