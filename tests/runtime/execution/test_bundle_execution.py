"""Running plans: handmade plans compute what numpy computes, and damaged ones give a result or a fault."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einc_runtime.errors import PlanFault, RuntimeFault
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import HEADER, decode, encode, seal
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import TransferTask
from tests.support.handmade_plans import random_plan, reference, two_site_plan
from tests.support.property_examples import examples

MODELS = Path(__file__).parents[3] / "models"
PLAN = two_site_plan()
DATA = encode(PLAN)


def arrays_for(plan, seed=0):
    rng = np.random.default_rng(seed)
    loaded = [tensor for tensor in plan.tensors if tensor.kind != "value"]
    return {tensor.name: rng.standard_normal(tensor.shape).astype(np.float32) for tensor in loaded}


@examples(25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_proved_plans_compute_what_their_operations_say(seed, sites, operations, reuse):
    plan = decode(encode(random_plan(seed, sites, operations, reuse)))
    prove(plan)
    arrays = arrays_for(plan, seed)
    expected = reference(plan, arrays)
    session = Session(plan, backend="cpu")
    session.load_all(arrays)
    session.execute()
    for output in plan.outputs:
        name = plan.tensors[output.tensor].name
        scale = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(session.offload(name), expected[name], rtol=0, atol=1e-5 * scale)


def run_if_valid(data):
    """Whether damaged bytes are a plan that a session takes; anything but a fault of the runtime's is an error."""
    try:
        plan = decode(data)
        session = Session(plan, backend="cpu")
        session.load_all(arrays_for(plan))
        session.execute()
        for output in plan.outputs:
            session.offload(plan.tensors[output.tensor].name)
    except RuntimeFault:
        return False
    return True


def flip_and_run(start, step):
    payload, ran = bytearray(DATA[HEADER.size :]), 0
    for bit in range(start, 8 * len(payload), step):
        payload[bit >> 3] ^= 1 << (bit & 7)
        ran += run_if_valid(seal(bytes(payload)))
        payload[bit >> 3] ^= 1 << (bit & 7)
    return ran


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_plans_do_no_harm_when_they_run():
    assert flip_and_run(start=5, step=29) > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_damaged_plan_does_harm_when_it_runs():
    assert flip_and_run(start=0, step=1) > 0


@examples(60)
@given(st.integers(0, 10**9))
def test_rewritten_plans_do_no_harm_when_they_run(seed):
    rng = random.Random(seed)
    payload = bytearray(DATA[HEADER.size :])
    for _ in range(rng.randint(1, 3)):
        payload[rng.randrange(len(payload))] = rng.randrange(256)
    run_if_valid(seal(bytes(payload)))


@pytest.mark.parametrize("sites", [1, 3, 8])
def test_compiled_plans_are_proved(sites):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    path = MODELS / "ffn.ein"
    compiled = compile_model(
        path.read_text(), str(path), CompileOptions(machine="host", selector="eindecomp", devices=sites)
    )
    plan = decode(encode(compiled.bundle))
    assert plan == compiled.bundle
    prove(plan)
    assert any(isinstance(task, TransferTask) for task in plan.tasks) == (sites > 1)


@pytest.mark.parametrize("file", ["a\x1bb.ein", "\udcff.ein", "two\nlines.ein"])
def test_models_in_files_of_any_name_give_plans_that_can_be_read(file):
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    text = (MODELS / "ffn.ein").read_text()
    plan = decode(
        encode(compile_model(text, file, CompileOptions(machine="host", selector="eindecomp", devices=2)).bundle)
    )
    assert all(operation.source.isprintable() for operation in plan.operations)


def test_a_compiled_plan_with_any_one_task_left_out_is_refused():
    from einc.compiler import compile_model
    from einc.options import CompileOptions

    path = MODELS / "chain_c.ein"
    options = CompileOptions(machine="host", selector="eindecomp", devices=5)
    plan = compile_model(path.read_text(), str(path), options).bundle
    for gone in range(len(plan.tasks)):
        kept = [task for position, task in enumerate(plan.tasks) if position != gone]
        renumbered = tuple(
            msgspec.structs.replace(task, after=tuple(t - (t > gone) for t in task.after if t != gone)) for task in kept
        )
        with pytest.raises(PlanFault):
            prove(msgspec.structs.replace(plan, tasks=renumbered))
