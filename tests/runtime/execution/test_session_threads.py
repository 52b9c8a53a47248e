"""One session and many threads: every result is that of the thread's own inputs, or there is none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from einc_runtime.errors import ArrayFault
from einc_runtime.execution.session import Session
from tests.support.cuda_plans import on_fake
from tests.support.handmade_plans import two_site_plan

W = np.arange(6, dtype="f4").reshape(3, 2) / 3 - 1
THREADS, ROUNDS = 8, 12


@pytest.fixture(params=["cpu", "cuda"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    made = Session(two_site_plan(), "cpu") if request.param == "cpu" else on_fake(two_site_plan())[0]
    made.load_weights({"w": W})
    yield made
    made.close()
    sys.setswitchinterval(interval)


def x_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, (4, 3)).astype("f4")


def is_right(y: np.ndarray, seed: int) -> bool:
    return np.allclose(y, np.maximum(x_of(seed) @ W, 0), rtol=1e-5, atol=1e-5)


def in_threads(body: Callable[[int], list[bool | None]]) -> list[bool | None]:
    """The results of all threads: right, wrong or None where a call was refused."""
    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(body, range(THREADS)) for result in results]


def test_run_is_one_step(session: Session) -> None:
    def body(thread: int) -> list[bool | None]:
        seeds = range(thread * ROUNDS, (thread + 1) * ROUNDS)
        return [is_right(session.run({"x": x_of(seed)})["y"], seed) for seed in seeds]

    assert in_threads(body) == [True] * (THREADS * ROUNDS)


def test_single_steps_are_right_or_refused(session: Session) -> None:
    start = threading.Barrier(THREADS)

    def attempt(seed: int) -> bool | None:
        try:
            if seed % 5 == 0:
                return is_right(session.run({"x": x_of(seed)}, ["y"])["y"], seed)
            session.load("x", x_of(seed))
            session.execute()
            return is_right(session.offload("y"), seed)
        except ArrayFault:
            return None

    def body(thread: int) -> list[bool | None]:
        start.wait()
        return [attempt(seed) for seed in range(thread * ROUNDS, (thread + 1) * ROUNDS)]

    results = in_threads(body)
    assert False not in results
    assert True in results


def in_another_thread(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_what_one_thread_loaded_another_may_execute(session: Session) -> None:
    session.load("x", x_of(1))
    in_another_thread(session.execute)
    assert is_right(session.offload("y"), 1)
    in_another_thread(lambda: session.load("x", x_of(2)))
    in_another_thread(session.execute)
    with pytest.raises(ArrayFault, match="another thread has loaded other inputs since"):
        session.offload("y")
    session.load("x", x_of(3))
    session.execute()
    assert is_right(session.offload("y"), 3)


def test_inputs_are_not_replaced_before_they_are_executed(session: Session) -> None:
    session.load("x", x_of(1))
    with pytest.raises(ArrayFault, match="inputs that are not executed yet") as caught:
        in_another_thread(lambda: session.load("x", x_of(2)))
    assert "run()" in str(caught.value.hint)
    in_another_thread(lambda: session.load_weights({"w": W}))
    session.execute()
    assert is_right(session.offload("y"), 1)


def test_a_thread_that_has_ended_keeps_nobody_out(session: Session) -> None:
    thread = threading.Thread(target=lambda: session.load("x", x_of(1)))
    thread.start()
    thread.join()
    session.load("x", x_of(2))
    session.execute()
    assert is_right(session.offload("y"), 2)


def test_a_run_leaves_no_inputs_and_no_results(session: Session) -> None:
    session.load("x", x_of(1))
    session.execute()
    assert is_right(session.run({"x": x_of(2)})["y"], 2)
    with pytest.raises(ArrayFault, match="not computed yet"):
        session.offload("y")
    with pytest.raises(ArrayFault, match="nothing is loaded for 'x'"):
        session.execute()
    with pytest.raises(ArrayFault, match="nothing is given for input 'x'"):
        session.run({})
    with pytest.raises(ArrayFault, match="no input 'xs'"):
        session.run({"xs": x_of(1)})
    with pytest.raises(ArrayFault, match="saves no 'z'"):
        session.run({"x": x_of(1)}, ["z"])
    with pytest.raises(ArrayFault, match=r"expected f32\[4, 3\]"):
        session.run({"x": x_of(1).T})
    assert is_right(session.run({"x": x_of(4)})["y"], 4)
