"""A reproducible plan has no kernel that adds up in an order that nobody states."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from einc.compiler import compile_model
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.kernels import registry
from einc_runtime.kernels.base import COMPOSED_KERNELS, Invocation
from einc_runtime.kernels.triton import builders
from einc_runtime.plan import reproducible
from einc_runtime.plan.validation import validate

PLAIN = ("einc_runtime.kernels.numpy.moves", "build_reshape"), ("einc_runtime.kernels.triton.moves", "build_reshape")
MODEL = "model m\ndim n = 8\ninput x : f32[n, n]\noutput y = softmax(x)\n"


@pytest.fixture
def with_running_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was added to the ordinary tables alone."""
    monkeypatch.setitem(registry.PROVIDERS["numpy"], "running_sums", PLAIN[0])
    monkeypatch.setitem(builders.KERNELS, "running_sums", PLAIN[1])


def invocation(**attributes: bool) -> Invocation[np.ndarray]:
    return Invocation("running_sums", attributes, (np.zeros(4, np.float32),), (np.zeros(4, np.float32),))


@pytest.mark.usefixtures("with_running_sums")
def test_a_kernel_without_an_order_is_refused_where_one_is_asked_for() -> None:
    registry.prepare(invocation())
    for prepare in (registry.prepare, builders.build_kernel):
        with pytest.raises(PlanFault, match="running_sums adds up in no stated order") as caught:
            prepare(invocation(reproducible=True))
        assert "--reproducible" in (caught.value.hint or "")


def test_a_plan_that_asks_for_such_a_kernel_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = compile_model(MODEL, "m.ein", CompileOptions(machine="dgx-v100", devices=1, reproducible=True)).bundle
    (operation,) = bundle.operations
    changed = msgspec.structs.replace(operation, kernel="running_sums")
    with pytest.raises(PlanFault, match="running_sums, where rows with its attributes has softmax"):
        validate(msgspec.structs.replace(bundle, operations=(changed,)))
    monkeypatch.setattr(reproducible, "ADDING_KERNELS", frozenset())
    with pytest.raises(PlanFault, match="adds up in no stated order") as caught:
        validate(bundle)
    assert caught.value.where == "operations[0].kernel"


def test_a_kernel_that_is_in_no_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.PROVIDERS["numpy"], "running_sums", PLAIN[0])
    with pytest.raises(PlanFault, match="adds up in no stated order"):
        registry.prepare(invocation(reproducible=True))


def test_every_kernel_with_an_order_has_a_form_for_it_and_no_other_adds_up() -> None:
    stated = reproducible.ADDING_KERNELS - COMPOSED_KERNELS
    assert stated == set(builders.ORDERED)
    assert stated <= set(registry.REPRODUCIBLE)
    assert (
        stated | reproducible.SUMLESS_KERNELS | {"custom"} == set(builders.KERNELS) == set(registry.PROVIDERS["numpy"])
    )
    assert set(registry.REPRODUCIBLE) - stated <= reproducible.SUMLESS_KERNELS
