"""One GPU that plays eight: plans whose sites are on GPUs of their own, on one fake GPU or two."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial

import pytest

from einc_runtime.execution.cuda.driver import Driver, DriverError
from einc_runtime.kernels.gpu import Kernels
from tests.gpu.aliases import AliasedDriver, AliasedKernels
from tests.gpu.cases import CASES
from tests.gpu.correctness import arrays_of, check, compiled, hash_of, reference
from tests.gpu.layouts import Layout
from tests.gpu.places import CPU, GPU
from tests.support.cuda_fake import FakeDriver, Misuse

SMALL = {case.name: case for case in CASES if case.dtype == "f32" and not case.slow and not case.reproducible}


def test_aliases_are_devices_of_their_own_on_real_ones():
    real = FakeDriver(2, memory=1000, unreachable={(0, 1)})
    driver = AliasedDriver(real, 5)
    assert driver.device_count() == 5
    assert [driver.target(device).device for device in range(5)] == list(range(5))
    assert driver.target(3).name == "Fake 1"
    assert driver.memory(2) == (333, 333)
    assert driver.can_reach(0, 2)
    assert not driver.can_reach(0, 1)  # for the real ones do not
    assert driver.can_reach(1, 2)
    assert not AliasedDriver(real, 5, reach=False).can_reach(0, 2)
    driver.enable_peer(0, 2)
    assert not real.peers
    driver.enable_peer(1, 2)
    assert real.peers == {(1, 0)}
    with pytest.raises(Misuse):
        real.enable_peer(1, 1)
    stream = driver.create_stream(4)
    assert real.held["stream"][stream].device == 0
    driver.use(3)
    assert real.current == 1
    with pytest.raises(DriverError):
        AliasedDriver(FakeDriver(2, refused={(0, 1)}), 4).enable_peer(2, 3)


@pytest.mark.parametrize("layout", [Layout.ALIASED, Layout.STAGED, Layout.SPREAD])
@pytest.mark.parametrize("name", ["chain_c", pytest.param("llama_block", marks=pytest.mark.slow)])
def test_plans_run_with_every_site_on_a_gpu_of_its_own(name, layout):
    case = SMALL[name]
    expected = reference(case, arrays_of(compiled(case, 1, "f32")))
    seen = []

    def make_session(bundle):
        session = CPU.session(bundle, layout)
        seen.append(session.facts)
        return session

    assert check(case, 8, make_session, expected, None).holds
    (facts,) = seen
    assert len(facts.cuda.devices) == (2 if layout is Layout.SPREAD else 8)
    alone = CPU.executor(compiled(case, 8, "f32"))
    assert len(alone.facts().cuda.devices) == 1
    if layout is Layout.STAGED:  # what kernels read from other sites has to go through the host
        assert facts.cuda.graph.steps > alone.facts().cuda.graph.steps
    assert bool([note for note in facts.cuda.notes if "cannot reach" in note]) == (layout is Layout.STAGED)
    alone.close()


def test_streams_for_every_pair_of_eight_gpus():
    executor = CPU.executor(compiled(SMALL["rows"], 8, "f32"), Layout.ALIASED)
    assert executor.facts().cuda.graph.streams > 40  # eight sites, and each to most of the others
    executor.close()


@pytest.mark.slow
def test_reproducible_cases_have_the_same_bits_for_every_number_of_aliases():
    """In small; without the option, the bits are others, so that the comparison can fail."""
    odd = SMALL["llama_block"].definitions
    case = replace(next(case for case in CASES if case.reproducible and case.dtype == "f32"), definitions=odd)
    expected = reference(case, arrays_of(compiled(case, 1, "f32")))

    def bits_of(sites, layout):
        found = check(case, sites, partial(CPU.session, layout=layout), expected, None)
        assert found.holds, found
        return found.bits

    first = bits_of(1, Layout.ONE)
    assert len(first) == 16
    assert {bits_of(3, Layout.ALIASED), bits_of(4, Layout.STAGED)} == {first}
    others = set()
    for sites in (1, 3):
        bundle = compiled(replace(case, reproducible=False), sites, "f32")
        with CPU.session(bundle, Layout.ALIASED) as session:
            session.load_all(arrays_of(bundle))
            session.execute()
            others.add(hash_of({tensor.name: session.offload(tensor.name) for tensor in session.outputs}))
    assert len(others | {first}) == 3


def test_every_number_of_sites_of_reproducible_cases_is_run():
    runs = [run for run in GPU.runs() if run.case.reproducible and run.case.dtype == "f16"]
    assert [(run.sites, run.layout.value) for run in runs] == [
        (1, "one"), *((sites, "aliased") for sites in range(2, 9)), (8, "staged"),
    ]  # fmt: skip


def test_runs_over_several_gpus_are_only_those_of_several():
    def count(gpus):
        return sum(run.layout is Layout.SPREAD for run in replace(GPU, gpus=gpus).runs())

    assert count(1) == 0
    assert count(2) == count(8) >= 5
    titles = [run.title for run in GPU.runs()]
    assert len(set(titles)) == len(titles)
    assert titles.index("llama f32 on 1 sites") < titles.index("elementwise f32 on 1 sites")


def test_aliases_of_kernels_have_all_that_kernels_have():
    """And those of drivers: a call with a device must not go to the real driver as it is."""
    wanted = {name for name in vars(Kernels) if not name.startswith("_")}
    assert wanted <= set(vars(AliasedKernels))
    of_devices = {
        name for name, method in vars(Driver).items()
        if callable(method) and "device" in inspect.signature(method).parameters
    }  # fmt: skip
    assert {"use", "allocate", "copy", "create_event"} <= of_devices <= set(vars(AliasedDriver))
