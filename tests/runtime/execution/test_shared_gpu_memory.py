"""Sessions of several plans on GPUs over one memory: blocks are there once, results as alone, the last one frees."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from einc.compiler import compile_model
from einc.generation.decoder_plans import make_pins
from einc.options import CompileOptions
from einc_runtime.errors import KernelFault, MissingFault
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.cuda.shared_memory import lay_out
from einc_runtime.execution.data.random_arrays import make_random_array
from einc_runtime.execution.session import Session
from einc_runtime.execution.shared_buffers import SharedBuffers
from einc_runtime.plan.regions import buffer_bytes
from einc_runtime.plan.schema import Bundle
from tests.support.compiled_plans import MODELS
from tests.support.cuda_fake import FakeDriver
from tests.support.cuda_fake_kernels import NumpyKernels
from tests.support.cuda_plans import LAYOUTS, ffn, on_fake

TEXT = (MODELS / "llama_decode.ein").read_text()


@cache
def compile_plans(sites: int) -> tuple[Bundle, Bundle]:
    """A step of one token, and one of four, which is pinned to the cuts of the first."""

    def compiled(length: int, pins: tuple = ()) -> Bundle:
        definitions = (("length", str(length)),)
        options = CompileOptions("host", sites, definitions, "tiny", "f32", "eindecomp", "naive", pins=pins)
        return compile_model(TEXT, "m.ein", options).bundle

    one = compiled(1)
    return one, compiled(4, make_pins(one))


def open_on(driver: FakeDriver, bundle: Bundle, common: SharedBuffers, devices: list[int] | None) -> Session:
    executor = CudaExecutor(bundle, devices, common=common, driver=driver, kernels=NumpyKernels(driver))
    return Session(bundle, executor=executor, common=common)


def weights_of(bundle: Bundle) -> dict[str, np.ndarray]:
    return {t.stored: make_random_array(t, 1) for t in bundle.tensors if t.kind == "weight"}


def inputs_of(ids: np.ndarray, first: int) -> dict[str, np.ndarray]:
    places = np.arange(first, first + ids.shape[1])
    return {"ids": ids.ravel(), "positions": np.tile(places, len(ids))}


IDS = np.random.default_rng(0).integers(0, 97, (2, 7))


def expect_last(plan: Bundle) -> np.ndarray:
    """The logits after the last of `IDS`, by steps of one token on the CPU."""
    alone = Session(plan, "cpu")
    alone.load_weights(weights_of(plan))
    return [alone.run(inputs_of(IDS[:, k : k + 1], k))["logits"] for k in range(IDS.shape[1])][-1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sites", [1, 3])
def test_what_one_session_has_loaded_or_left_the_others_have(sites: int, layout: str) -> None:
    step_plan, piece_plan = compile_plans(sites)
    devices = LAYOUTS[layout](sites)
    driver, common = FakeDriver(sites), SharedBuffers()
    step, piece = (open_on(driver, plan, common, devices) for plan in (step_plan, piece_plan))
    assert step.shares_states(piece)
    step.load_weights(weights_of(step_plan))
    copied = driver.counts["copy"]
    piece.load_weights(weights_of(step_plan), only_missing=True)
    assert driver.counts["copy"] - copied < copied / 2  # but few blocks are cut otherwise
    piece.run(inputs_of(IDS[:, :4], 0))
    step.run(inputs_of(IDS[:, 4:5], 4))
    late = open_on(driver, step_plan, common, devices)  # its kernels warm up on states that others have written
    assert late.shares_states(step)
    assert not late.missing or set(late.missing) <= {"ids", "positions"}
    late.run(inputs_of(IDS[:, 5:6], 5))
    np.testing.assert_allclose(step.run(inputs_of(IDS[:, 6:], 6))["logits"], expect_last(step_plan), atol=1e-4)
    for session in (piece, step, late):
        assert driver.held["memory"]
        session.close()
    assert driver.leaks() == {}
    assert not common.on_devices.addresses


def test_memory_is_that_of_one_set_of_weights_and_states() -> None:
    step_plan, piece_plan = compile_plans(1)
    blocks = {b for b, one in enumerate(step_plan.buffers) if step_plan.tensors[one.tensor].kind in ("weight", "state")}
    once = sum(buffer_bytes(step_plan, step_plan.buffers[b]) for b in blocks)
    driver, common = FakeDriver(1), SharedBuffers()
    sessions = [open_on(driver, plan, common, None) for plan in (step_plan, piece_plan, step_plan)]
    used = driver.memory(0)[1] - driver.memory(0)[0]
    private = sum(plan.memory[0] for plan in (step_plan, piece_plan, step_plan)) - 3 * once
    assert used < private + 1.2 * once
    facts = [session.facts.cuda.devices[0].bytes for session in sessions]
    assert facts[0] > once > facts[2]
    assert sum(facts) == used
    free = once + step_plan.memory[0] // 2
    with pytest.raises(MissingFault, match="and running llama_decode takes"):
        open_on(FakeDriver(1, memory=free // 2), step_plan, SharedBuffers(), None)


def test_states_are_zeros_until_something_runs() -> None:
    step_plan, piece_plan = compile_plans(3)
    driver, common = FakeDriver(3), SharedBuffers()
    step = open_on(driver, step_plan, common, None)
    fetched = driver.counts["copy"]
    piece = open_on(driver, piece_plan, common, None)
    assert driver.counts["copy"] == fetched  # what is known to be zeros is not brought to the host and back
    for session in (step, piece):
        assert not any(session.offload(state.name).any() for state in session.states)
    step.load(step.states[0].name, np.ones(step.states[0].shape, "f4"))
    another = open_on(driver, piece_plan, common, None)
    assert all(session.offload(step.states[0].name).all() for session in (step, piece, another))
    another.clear_states()
    assert not step.offload(step.states[0].name).any()


def test_sessions_without_common_memory_share_nothing() -> None:
    plan = compile_plans(1)[0]
    driver = FakeDriver(1)
    one, other = (open_on(driver, plan, common, None) for common in (SharedBuffers(), SharedBuffers()))
    assert not one.shares_states(other)
    one.load_weights(weights_of(plan))
    assert other.missing


def test_a_session_that_comes_after_the_last_was_closed_has_nothing() -> None:
    plan = compile_plans(1)[0]
    driver, common = FakeDriver(1), SharedBuffers()
    first = open_on(driver, plan, common, None)
    first.load_weights("rand:1")
    first.close()
    again = open_on(driver, plan, common, None)
    assert set(weights_of(plan)) <= {t.stored for t in plan.tensors if t.name in again.missing}


def test_multicast_memory_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINC_MULTICAST", "1")
    plan = compile_plans(3)[0]
    driver, common = FakeDriver(3, multicast=4096), SharedBuffers()
    one, other = (open_on(driver, plan, common, None) for _ in range(2))
    assert not one.shares_states(other)
    one.load_weights("rand:1")
    assert other.missing
    one.close()
    other.close()
    assert driver.leaks() == {}


def use_second(driver: FakeDriver, plan: Bundle, common: SharedBuffers) -> None:
    second = open_on(driver, plan, common, None)
    second.load_weights("rand:1", only_missing=True)
    second.run(inputs_of(IDS[:, :4], 0))
    second.close()


def test_whatever_fails_nothing_is_left_and_others_go_on() -> None:
    """Every call of the driver fails once, while a second session is made and used."""
    plans = compile_plans(1)
    clean, common = FakeDriver(1), SharedBuffers()
    first = open_on(clean, plans[0], common, None)
    first.load_weights("rand:1")
    begin = len(clean.calls)
    use_second(clean, plans[1], common)
    end = len(clean.calls)
    rng = random.Random(0)
    for fail_at in sorted(rng.sample(range(begin, end), 12)):
        driver, common = FakeDriver(1), SharedBuffers()
        first = open_on(driver, plans[0], common, None)
        first.load_weights("rand:1")
        expected = first.run(inputs_of(IDS[:, :1], 0))["logits"]
        before = Counter({kind: len(own) for kind, own in driver.held.items()})
        driver.fail_at = len(driver.calls) + fail_at - begin
        with pytest.raises((KernelFault, MissingFault)):
            use_second(driver, plans[1], common)
        driver.fail_at = None
        assert Counter({kind: len(own) for kind, own in driver.held.items()}) == before, driver.calls[fail_at]
        np.testing.assert_array_equal(first.run(inputs_of(IDS[:, :1], 0))["logits"], expected)
        first.close()
        assert driver.leaks() == {}


@pytest.mark.parametrize("sites", [1, 3])
def test_what_stays_in_the_arenas_lies_apart(sites: int) -> None:
    for plan in compile_plans(sites):
        layout = lay_out(plan, [0] * sites, shared=True)
        saved = [whole - own for whole, own in zip(plan.memory, layout.sizes, strict=True)]
        assert all(saved)
        places: dict[int, list[tuple[int, int]]] = {}
        for number, buffer in enumerate(plan.buffers):
            if number in layout.keys or number in layout.same:
                continue
            start, size = layout.offsets[number], buffer_bytes(plan, buffer)
            assert start % 64 == 0
            assert start + size <= layout.sizes[buffer.site]
            # two buffers overlap where they did in the plan, and nowhere else
            places.setdefault(buffer.site, []).append((number, start))
        for own in places.values():
            for number, start in own:
                for other, then in own:
                    moved = then - start
                    if 0 <= moved < buffer_bytes(plan, plan.buffers[number]):
                        assert plan.buffers[other].offset - plan.buffers[number].offset == moved


def test_a_buffer_over_a_weight_shares_nothing() -> None:
    plan = ffn(1)
    weight = next(b for b in plan.buffers if b.role == "weight")
    number = next(n for n, b in enumerate(plan.buffers) if b.role == "scratch")
    buffers = list(plan.buffers)
    buffers[number] = replace(buffers[number], offset=weight.offset)
    hostile = replace(plan, buffers=tuple(buffers))
    assert lay_out(plan, [0], shared=True).keys
    assert not lay_out(hostile, [0], shared=True).keys
    assert lay_out(hostile, [0], shared=True).sizes == tuple(plan.memory)


def test_an_executor_alone_has_no_states_in_common() -> None:
    assert on_fake(ffn(2))[1].common_states() is None
