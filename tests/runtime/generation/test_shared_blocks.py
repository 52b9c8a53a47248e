"""Blocks that sequences share: who holds which, what is found again, and that answers stay the same."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.generation.blocks import SPARE, BlockPool, name_blocks
from einc_runtime.generation.generator import Generator, share_buffers
from einc_runtime.generation.sequence_batch import NewToken, SequenceBatch, SequenceRequest
from einc_runtime.generation.slots import DecoderSlots
from tests.support.cuda_fake import FakeDriver
from tests.support.generation_cases import DATA, PROMPTS, expected_tokens, make_sessions
from tests.support.launch_cases import PartByPart

NAME, PIECE, PLACES = "llama-scaled", 4, 20


def test_names_say_all_tokens_up_to_the_end_of_a_block() -> None:
    assert len(name_blocks([1, 2, 3, 4, 5], 2)) == 2
    assert name_blocks([1, 2, 3, 4], 2) == name_blocks([1, 2, 3, 4, 9], 2)
    different = ([1, 2, 3, 4], 2, ""), ([9, 2, 3, 4], 2, ""), ([1, 2, 3, 4], 2, "salt"), ([1, 2, 3, 5], 2, "")
    assert len({name_blocks(*arguments)[-1] for arguments in different}) == 4


def test_the_blocks_that_were_left_first_go_first_and_ends_before_beginnings() -> None:
    pool = BlockPool(6, 2)
    names = name_blocks(range(6), 2)
    first = pool.hold((), 3)
    for block, name in zip(first, names, strict=True):
        pool.name(block, name)
    other = pool.hold((), 2)
    assert not pool.fits((), 1)
    pool.leave(first)
    pool.leave(other)  # it has no names: these blocks are free
    assert pool.find(names) == first
    assert pool.fits(first[:2], 3)
    assert not pool.fits(first[:2], 4)
    pool.hold((), 3)
    assert pool.find(names) == first[:2]
    assert pool.hold(first[:1], 0) == first[:1]
    pool.hold((), 1)
    assert pool.find(names) == first[:1]
    assert pool.held == 5


def test_no_two_sequences_write_to_one_block() -> None:
    """Beside a count by hand: sequences come and go in no order, a third of which share what others have."""
    draw, pool = random.Random(5), BlockPool(12, 1)
    sequences: list[tuple[list[int], int]] = []
    for _ in range(2000):
        if sequences and draw.random() < 0.5:
            pool.leave(sequences.pop(draw.randrange(len(sequences)))[0])
        names = name_blocks([draw.randrange(2) for _ in range(draw.randint(1, 6))], 1)
        shared = pool.find(names)
        more = len(names) - len(shared) + draw.randrange(3)
        if pool.fits(shared, more):
            blocks = pool.hold(shared, more)
            for block, name in zip(blocks, names, strict=False):
                pool.name(block, name)
            sequences.append((blocks, len(shared)))
        holders = Counter(block for blocks, _ in sequences for block in blocks)
        assert SPARE not in holders
        assert pool.held == len(holders)
        written = [block for blocks, count in sequences for block in blocks[count:]]
        assert len(written) == len(set(written))
        assert all(len(set(blocks)) == len(blocks) for blocks, _ in sequences)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> list[Session]:
    """Three slots, steps of one sequence, pieces of 4 tokens, and 10 blocks of 4."""
    sizes = 3, PLACES, (PIECE,), (1,), 2 * PLACES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("einc.generation.decoder_plans.BLOCK_TOKENS", PIECE)
        return make_sessions(DATA / NAME, tmp_path_factory.mktemp("plans"), sizes)


def test_prompts_with_one_beginning_read_it_once(sessions: list[Session]) -> None:
    """Whatever was there before, an answer has the same bits, which its logarithms of probabilities show."""
    rng = np.random.default_rng(2)
    prompt, end = rng.integers(0, 41, 17).tolist(), rng.integers(0, 41, 7).tolist()
    used = SequenceBatch(DecoderSlots(sessions[0], sessions[1:]))
    for tokens, salt, cached in (
        (prompt, "", 0), (prompt, "", 16), (prompt[:16], "", 12), ([*prompt[:10], *end], "", 8), (prompt, "s", 0),
        (prompt, "s", 16), (end, "", 0), (end[:1], "", 0),
    ):  # fmt: skip
        request = SequenceRequest(tokens, 3, logprobs=3, salt=salt)
        fresh = SequenceBatch(DecoderSlots(sessions[0], sessions[1:]))
        new, expected = run(used, request), run(fresh, request)
        assert {step.cached for step in new} == {cached}
        assert [replace(step, cached=0) for step in new] == expected
        found = run(used, replace(request, logprobs=None))  # the plan finds these tokens, where it returned logits
        assert [step.token for step in found] == [step.token for step in new]


def run(batch: SequenceBatch, request: SequenceRequest) -> list[NewToken]:
    """All tokens of a sequence that has the batch for itself."""
    assert batch.start(1, request)
    results = [progress.result for _ in range(9) for progress in batch.advance()]
    return [result for result in results if isinstance(result, NewToken)]


def test_sequences_share_what_others_still_use_and_wait_for_blocks(sessions: list[Session]) -> None:
    batch = SequenceBatch(DecoderSlots(sessions[0], sessions[1:]))
    request = SequenceRequest(list(range(17)), 4)  # 5 blocks, of which 4 are whole pieces of its prompt
    assert batch.start(0, request)
    for _ in range(4):
        assert batch.advance() == []
    assert batch.start(1, replace(request, number=1))
    assert batch.start(2, replace(request, number=2, max_tokens=2))
    results = [progress.result for _ in range(5) for progress in batch.advance()]
    new = [result for result in results if isinstance(result, NewToken)]
    by_number = {number: [step.token for step in new if step.sequence == number] for number in range(3)}
    assert by_number[0] == by_number[1]
    assert by_number[2] == by_number[0][:2]
    assert {(step.sequence, step.cached) for step in new} == {(0, 0), (1, 16), (2, 16)}
    others = [SequenceRequest([n] * 20, 1) for n in range(3)]
    assert [batch.start(slot, other) for slot, other in enumerate(others)] == [True, True, False]
    batch.end(0)
    assert batch.start(2, others[2])


def test_gpus_give_the_same_tokens(sessions: list[Session]) -> None:
    """On the stand-in for the driver, with two prompts that share blocks of one memory."""
    driver, common = FakeDriver(), share_buffers()
    opened = []
    for bundle in (session.bundle for session in sessions):
        executor = CudaExecutor(bundle, common=common, driver=driver, kernels=PartByPart(driver))
        opened.append(Session(bundle, executor=executor, common=common))
        opened[-1].load_weights(str(DATA / NAME), only_missing=True)
    prompts = [PROMPTS[0], PROMPTS[1], [*PROMPTS[0], 4]]
    expected = Generator(sessions[0], sessions[1:]).generate(prompts, 4)
    generator = Generator(opened[0], opened[1:])
    assert generator.generate(prompts[:2], 4) == expected[:2]
    assert generator.generate(prompts[2:], 4) == expected[2:]
    assert generator.times.cached_tokens == PIECE
    assert [step.tokens for step in expected[:2]] == [tokens[:4] for tokens in expected_tokens(NAME)]
    for session in opened:
        session.close()
    assert driver.leaks() == {}
