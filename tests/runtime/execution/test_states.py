"""States: what an execution leaves is what the next one starts with, on the CPU and on a fake driver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from einc_runtime.errors import ArrayFault, ValueFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.states import STATE
from tests.support.cuda_plans import on_fake
from tests.support.state_plans import Steps, compile_steps

BACKENDS: dict[str, Callable[[Bundle], Session]] = {
    "cpu": lambda bundle: Session(bundle, executor=CpuExecutor(bundle, 2, poison=True)),
    "plain": lambda bundle: Session(bundle, executor=CpuExecutor(bundle, 1, rewrites=False)),
    "cuda": lambda bundle: on_fake(bundle)[0],
}
PLANS = [(1, "", "replicated"), (3, "ks=places/3", "once"), (4, "ks=heads/2,places/2", "replicated"),
         (2, "ks=replicated", "replicated")]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan[0]} sites {plan[1]}")
def test_a_state_is_what_was_appended(backend: str, plan: tuple[int, str, str]) -> None:
    session, steps = BACKENDS[backend](compile_steps(*plan)), Steps()
    assert [tensor.name for tensor in session.states] == ["keys"]
    assert not session.offload("keys").any()
    for _ in range(4):
        found = session.run(steps.draw())
        assert np.array_equal(found["ks"], steps.keys)
        np.testing.assert_allclose(found["y"], steps.y, rtol=1e-5)
        assert np.array_equal(session.offload("keys"), steps.keys)
    steps.keys[:] = session.offload("keys")[:, ::-1]
    session.load("keys", steps.keys)
    assert np.array_equal(session.run(steps.draw())["ks"], steps.keys)
    session.clear_states()
    steps.keys[:] = 0
    assert np.array_equal(session.run(steps.draw())["ks"], steps.keys)
    session.close()


@pytest.mark.parametrize(("rewrites", "places"), [(True, 1), (False, 2)])
def test_equal_states_have_one_place(rewrites: bool, places: int) -> None:
    executor = CpuExecutor(compile_steps(2, "ks=replicated"), 2, rewrites=rewrites)
    session, steps = Session(executor.bundle, executor=executor), Steps()
    memory = {id(executor.memory_of(n)) for n, buffer in enumerate(executor.bundle.buffers) if buffer.role == STATE}
    assert len(memory) == places
    for _ in range(2):
        session.run(steps.draw())
    for number, buffer in enumerate(executor.bundle.buffers):
        if buffer.role == STATE:
            np.testing.assert_array_equal(executor.memory_of(number), steps.keys)


def test_a_position_outside_changes_nothing() -> None:
    session, steps = BACKENDS["cpu"](compile_steps(1)), Steps()
    session.run(steps.draw())
    before = steps.keys.copy()
    with pytest.raises(ValueFault, match="positions in its sequence of the cache are 0 to 3"):
        session.run({**steps.draw(), "positions": np.array([0, 1, 4, 0, 0, 0])})
    assert np.array_equal(session.offload("keys"), before)


def test_states_are_no_inputs() -> None:
    session = BACKENDS["cpu"](compile_steps(1))
    assert {tensor.name for tensor in session.inputs} == {"x", "positions"} == set(session.missing)
    with pytest.raises(ArrayFault, match=r"expected f32\[4, 17, 5\] for state 'keys'"):
        session.load("keys", np.zeros((4, 17, 6), "f4"))
