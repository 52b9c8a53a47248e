"""A pool and many threads: every result has the bits of a single run, and weights are in memory once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest

from einc_runtime import SessionPool
from einc_runtime.errors import ArrayFault, KernelFault, PlanFault, UsageFault
from einc_runtime.execution import session as session_module
from einc_runtime.execution.base import Executor
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Bundle
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_plans import on_fake
from tests.support.plan_arrays import arrays_of
from tests.support.state_plans import compile_steps

THREADS, ROUNDS, SESSIONS = 6, 3, 3
WIDE = {"tokens": 37, "d_model": 301, "d_ff": 211}
"""Large enough for products with weights that are laid out."""


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def ffn(sites: int, dtype: str) -> Bundle:
    return compiled((MODELS / "ffn.ein").read_text(), sites, dtype, **WIDE)


def split(bundle: Bundle, seed: int) -> tuple[dict, dict]:
    """Random weights, by their names in files, and inputs."""
    arrays = arrays_of(bundle, seed)
    weights = {t.stored or t.name: arrays[t.name] for t in bundle.tensors if t.kind == "weight"}
    return weights, {t.name: arrays[t.name] for t in bundle.tensors if t.kind == "input"}


def run_alone(bundle: Bundle, weights: dict, seeds: range) -> list[dict]:
    alone = Session(bundle, "cpu", workers=1)
    alone.load_weights(weights)
    return [alone.run(split(bundle, seed)[1]) for seed in seeds]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sites", "dtype"), [(1, "f32"), (3, "f16"), (1, "bf16")])
def test_every_result_is_that_of_a_single_run(sites: int, dtype: str) -> None:
    bundle, seeds = ffn(sites, dtype), range(THREADS * ROUNDS)
    with SessionPool(bundle, "cpu", sessions=SESSIONS, workers=1) as pool:
        for weight_seed in (1000, 1001):  # weights that are loaded again are laid out again, for all sessions
            weights = split(bundle, weight_seed)[0]
            expected = run_alone(bundle, weights, seeds)
            pool.load_weights(weights)
            with ThreadPoolExecutor(THREADS) as threads:
                found = list(threads.map(lambda seed: pool.run(split(bundle, seed)[1]), seeds))
            for one, other in zip(found, expected, strict=True):
                assert one.keys() == other.keys()
                for name, array in one.items():
                    np.testing.assert_array_equal(array, other[name])


def test_as_many_run_at_once_as_there_are_sessions() -> None:
    bundle = ffn(1, "f32")
    pool = SessionPool(bundle, "cpu", sessions=SESSIONS)
    assert len(pool) == SESSIONS
    pool.load_weights("rand:1")
    together, most, running = threading.Barrier(SESSIONS), 0, 0
    lock = threading.Lock()

    def borrow(_: int) -> None:
        nonlocal most, running
        with pool.borrow() as session:
            with lock:
                running += 1
                most = max(most, running)
            together.wait()  # ends only where as many are there
            session.run(split(bundle, 1)[1])
            with lock:
                running -= 1

    with ThreadPoolExecutor(2 * SESSIONS) as threads:
        list(threads.map(borrow, range(4 * SESSIONS)))
    assert most == SESSIONS
    pool.close()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_weights_and_their_layouts_are_there_once(dtype: str) -> None:
    bundle = ffn(1, dtype)
    pool = SessionPool(bundle, "cpu", sessions=SESSIONS, workers=1)
    pool.load_weights("rand:1")
    executors = [session._executor for session in pool._sessions]
    for session in pool._sessions:
        session.run(split(bundle, 1)[1])
    for number, buffer in enumerate(bundle.buffers):
        places = {executor.memory_of(number).ctypes.data for executor in executors}
        assert len(places) == (1 if buffer.role == "weight" else SESSIONS), bundle.tensors[buffer.tensor].name
    packs = [executor._prepacked._packs for executor in executors]
    assert packs[0] == packs[1] == packs[2]
    assert all(pack.data is not None for pack in packs[0])


def test_a_borrowed_session_leaves_nothing() -> None:
    bundle = ffn(1, "f32")
    pool = SessionPool(bundle, "cpu", sessions=1)
    pool.load_weights("rand:1")
    with ThreadPoolExecutor(1) as threads:

        def leave() -> None:
            with pool.borrow() as session:
                session.load_all(split(bundle, 1)[1])

        threads.submit(leave).result()
    with pool.borrow() as session, pytest.raises(ArrayFault, match="nothing is loaded"):
        session.execute()
    assert pool.run(split(bundle, 1)[1], [pool.outputs[0].name])


def test_weights_are_loaded_when_no_execution_runs() -> None:
    bundle = ffn(1, "f32")
    pool = SessionPool(bundle, "cpu", sessions=2, workers=1)
    sets = [split(bundle, seed)[0] for seed in (1, 2)]
    inputs = split(bundle, 3)[1]
    right = [{n: a.tobytes() for n, a in run_alone(bundle, one, range(3, 4))[0].items()} for one in sets]
    pool.load_weights(sets[0])
    stop = threading.Event()

    def compute(_: int) -> bool:
        results = []
        while not stop.is_set() or not results:
            results.append({n: a.tobytes() for n, a in pool.run(inputs).items()} in right)
        return all(results)

    with ThreadPoolExecutor(3) as threads:
        found = threads.map(compute, range(3))
        for number in range(9):
            pool.load_weights(sets[number % 2])
        stop.set()
        assert all(found)


def test_faults_name_what_is_wrong() -> None:
    bundle = ffn(1, "f32")
    for sizes in ({"sessions": 0}, {"workers": 0}):
        with pytest.raises(UsageFault, match="one session and one worker at least"):
            SessionPool(bundle, "cpu", **sizes)
    with pytest.raises(PlanFault, match="cannot run a plan with states"):
        SessionPool(compile_steps(1), "cpu")
    pool = SessionPool(bundle, "cpu", sessions=1)
    with pytest.raises(ArrayFault, match="nothing is loaded for"):
        pool.run(split(bundle, 1)[1])
    pool.load_weights("rand:1")
    with pytest.raises(ArrayFault, match="nothing is given for input"):
        pool.run({})
    assert pool.run(split(bundle, 1)[1])
    pool.close()
    pool.close()
    with pytest.raises(ArrayFault, match="the pool is closed"):
        pool.run(split(bundle, 1)[1])
    with pytest.raises(ArrayFault, match="the pool is closed"):
        pool.load_weights("rand:1")


def test_closing_waits_for_what_runs_and_refuses_what_waits() -> None:
    pool = SessionPool(ffn(1, "f32"), "cpu", sessions=1)
    with ThreadPoolExecutor(2) as threads:
        with pool.borrow():
            waiting = threads.submit(pool.run, {})
            closing = threads.submit(pool.close)
            with pytest.raises(ArrayFault, match="the pool is closed"):
                waiting.result()
            assert not closing.done()
        closing.result()


def test_a_session_that_an_error_has_closed_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, numbers = ffn(1, "f32"), count()
    executors: list[Executor] = []

    def make(*_: object) -> Executor:
        executors.append(on_fake(bundle)[1])
        return executors[next(numbers)]

    monkeypatch.setattr(session_module, "make_executor", make)
    pool = SessionPool(bundle, "cuda", sessions=2)
    weights, inputs = split(bundle, 1)
    pool.load_weights(split(bundle, 2)[0])
    pool.load_weights(weights)
    expected = run_alone(bundle, weights, range(1, 2))[0]
    for left in (2, 1):
        for name, array in pool.run(inputs).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-4)
        with pool.borrow() as session:
            session.close()  # as after an error of its GPU
        assert sum(not one.closed for one in pool._sessions) == left - 1
    with pytest.raises(KernelFault, match="closed all sessions of the pool"):
        pool.run(inputs)
    pool.close()
