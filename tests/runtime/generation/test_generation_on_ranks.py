"""Text on several ranks, with links between threads: the logits of one process to the bit, led by rank 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from einc.generation.decoder_plans import DecoderSizes, DecoderSource, find_plans
from einc.generation.plan_cache import PlanCache
from einc.options import CompileOptions
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.data.safetensors import list_stored_names
from einc_runtime.execution.ranks.cpu_part import make_cpu_executor
from einc_runtime.execution.ranks.executor import RankExecutor
from einc_runtime.execution.session import Session
from einc_runtime.generation.generator import Generator, share_buffers
from einc_runtime.generation.ranks import RankSession, dismiss, follow, open_rank_sessions
from einc_runtime.generation.slots import DecoderSlots
from einc_runtime.plan.schema import Bundle
from tests.support.generation_cases import DATA, PROMPTS, expected_tokens
from tests.support.thread_links import ThreadLinks, ThreadWorld

FOLDER = DATA / "llama-scaled"
SIZES = 2, 19, (4,)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    source = DecoderSource((FOLDER / "config.json").read_bytes(), "config.json", "m", list_stored_names(str(FOLDER)))
    options = CompileOptions(machine="host", devices=4, selector="eindecomp", schedule="naive")
    found = find_plans(
        source, options, PlanCache(tmp_path_factory.mktemp("plans")), DecoderSizes(*SIZES), lambda _: None
    )
    return [plan.bundle for plan in found.every]


def decode(sessions: list[Session]) -> list[bytes]:
    """The logits of a prompt in pieces, of steps, and of a prompt that begins in between."""
    slots = DecoderSlots(sessions[0], sessions[1:])
    found = [slots.append({0: PROMPTS[0]})]
    found += [slots.append({0: [token]}) for token in (3, 5)]
    found += [slots.append({1: PROMPTS[1]}), slots.append({0: [2], 1: [9]})]
    return [row.tobytes() for one in found for row in one.values()]


def open_on(links: ThreadLinks, bundles: list[Bundle]) -> list[RankSession]:
    def make(number: int, bundle: Bundle, common: Any) -> RankExecutor:
        return make_cpu_executor(bundle, links, 1, total=2, common=common)

    return open_rank_sessions(bundles, str(FOLDER), links, make)


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_ranks_compute_the_logits_of_one_process(bundles: list[Bundle], size: int) -> None:
    common = share_buffers()
    alone = [Session(bundle, executor=CpuExecutor(bundle, 2, common=common), common=common) for bundle in bundles]
    for session in alone:
        session.load_weights(str(FOLDER), only_missing=True)

    def run(links: ThreadLinks) -> tuple[list[bytes] | None, list[list[int]] | None, int]:
        sessions = open_on(links, bundles)
        held = {id(array): array.nbytes for array in sessions[0]._common.arrays.values()}  # type: ignore[union-attr]
        if links.rank:
            follow(links, sessions)
            return None, None, sum(held.values())
        logits = decode(list(sessions))
        texts = Generator(sessions[0], sessions[1:]).generate(PROMPTS, 10)
        dismiss(links)
        return logits, [one.tokens for one in texts], sum(held.values())

    (logits, tokens, first), *others = ThreadWorld(size, seed=size).run(run)
    assert logits == decode(alone)
    assert tokens == expected_tokens("llama-scaled")
    assert [one[:2] for one in others] == [(None, None)] * (size - 1)
    whole = sum(array.nbytes for array in common.arrays.values())
    assert max(first, *(held for *_, held in others)) < whole  # each holds a part of weights and caches


def test_caches_that_lie_on_other_ranks_are_moved(bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where two plans have the same blocks of a cache on other sites."""

    def run(links: ThreadLinks) -> list[bytes]:
        sessions = open_on(links, bundles)
        sessions[0]._states = {key: 3 - rank for key, rank in sessions[0]._states.items()}
        assert not sessions[1].shares_states(sessions[0])
        if links.rank:
            follow(links, sessions)
            return []
        logits = decode(list(sessions))
        dismiss(links)
        return logits

    first, *_ = ThreadWorld(4).run(run)
    common = share_buffers()
    alone = [Session(bundle, executor=CpuExecutor(bundle, 2, common=common), common=common) for bundle in bundles]
    for session in alone:
        session.load_weights(str(FOLDER), only_missing=True)
    assert first == decode(alone)
    assert np.frombuffer(first[0], np.float32).any()
