"""Several tasks as one launch: which ones, in which order, and what is left alone."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np
import pytest

from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.cuda.executor import CudaExecutor
from einc_runtime.execution.session import Session
from einc_runtime.kernels.base import Invocation
from einc_runtime.kernels.gpu import GpuArray
from einc_runtime.kernels.triton.joint_launches import can_join
from einc_runtime.plan.launches import find_joint_tasks, find_launches
from einc_runtime.plan.schema import KernelTask
from tests.support.compiled_plans import MODELS, compiled
from tests.support.cuda_fake import FakeDriver
from tests.support.launch_cases import SIZES, PartByPart, compile_step, run_twice, step_arrays


def named(bundle, tasks=None):
    def name(number):
        task = bundle.tasks[number]
        return bundle.operations[task.operation].name if isinstance(task, KernelTask) else task.kind

    return [(launch.kind, *map(name, launch.tasks)) for launch in find_launches(bundle, tasks or bundle.tasks)]


@pytest.mark.parametrize(("sites", "dtype"), [(1, "f32"), (3, "f32"), (2, "f16")])
def test_a_step_computes_the_same_in_many_orders(sites, dtype):
    bundle = compile_step(sites, dtype)
    arrays = step_arrays(bundle, sites)
    driver = FakeDriver(sites, seed=sites)
    kernels = PartByPart(driver)
    executor = CudaExecutor(bundle, list(range(sites)), driver=driver, kernels=kernels)
    results = run_twice(Session(bundle, executor=executor), arrays)
    expected = run_twice(Session(bundle, executor=CpuExecutor(bundle, 1)), arrays)
    for name, values in results.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=(1e-5 if dtype == "f32" else 1e-2))
    counts = Counter(launch.kind for launch in find_launches(bundle, bundle.tasks))
    assert all(kernels.joined[kind] for kind in ("rows", "places", "products") if counts[kind])
    executor.close()
    assert not driver.leaks()


def test_a_layer_of_one_site_has_eight_launches():
    assert named(compile_step(1, "bf16")) == [
        ("products", "layer.0.q", "layer.0.k", "layer.0.v"),
        ("places", "layer.0.rq", "layer.0.rk", "layer.0.ks", "layer.0.vs"),
        ("epilogue", "layer.0.o", "layer.0.r"),
        ("gated", "layer.0.gate", "layer.0.up", "layer.0.f"),
        ("epilogue", "layer.0.down", "x.0"),
    ]


def test_a_layer_with_stored_weights_has_one_launch_for_gate_and_up_too():
    text = (MODELS / "llama_decode.ein").read_text()
    text = re.sub(r"(weight w_\w+ *: bf16\[[^]]*\])", r"\1 as f8e4m3", text)
    assert named(compiled(text, 1, "bf16", **SIZES)) == [
        ("products", "layer.0.q", "layer.0.k", "layer.0.v"),
        ("places", "layer.0.rq", "layer.0.rk", "layer.0.ks", "layer.0.vs"),
        ("rows", "layer.0.r", "layer.0.n"),
        ("gated", "layer.0.gate", "layer.0.up", "layer.0.f"),
        ("rows", "x.0", "last_x"),
    ]


def change_rows(bundle, chosen, rows):
    """The plan with other rows in the products of these operations."""
    operations = [
        msgspec.structs.replace(
            operation,
            functions=tuple(
                msgspec.structs.replace(f, work=msgspec.structs.replace(f.work, rows=rows, columns=rows))
                for f in operation.functions
            ),
        )
        if operation.kernel == "contract" and chosen(operation.name)
        else operation
        for operation in bundle.operations
    ]
    return msgspec.structs.replace(bundle, operations=tuple(operations))


def test_what_waits_for_something_between_its_tasks_is_left_alone():
    bundle = change_rows(compile_step(1, "f32"), "layer.0.k".__eq__, 17)  # k stands between q and v
    assert ("products", "layer.0.q", "layer.0.v") in named(bundle)
    between, last = (
        next(n for n, task in enumerate(bundle.tasks) if bundle.operations[task.operation].name == name)
        for name in ("layer.0.k", "layer.0.v")
    )
    tasks = list(bundle.tasks)
    tasks[last] = msgspec.structs.replace(tasks[last], after=(*tasks[last].after, between))
    assert "products" not in {row[0] for row in named(bundle, tasks)}


def test_f64_and_many_rows_are_left_alone():
    assert {row[0] for row in named(compile_step(1, "f64"))} == {"epilogue"}
    many = change_rows(compile_step(1, "f32"), lambda name: True, 17)
    assert {row[0] for row in named(many)} == {"epilogue", "places"}


def test_memory_is_kept_until_the_last_task_of_a_launch_has_written():
    """No task of a launch writes bytes that another one of it reads, but for what it hands on."""
    bundle = compile_step(1, "f32")
    joint, _ = find_joint_tasks(bundle, bundle.tasks)
    assert set(joint) == {n for launch in find_launches(bundle, bundle.tasks) for n in launch.tasks[:-1]}

    def array(start, count):
        return GpuArray(start, (count,), (4,), "f32", 0)

    def part(reads, writes):
        return Invocation("map", {"program": "t0 = copy x0", "indices": "i -> i"}, reads, writes)

    one, other = part([array(0, 8)], [array(64, 8)]), part([array(64, 8)], [array(128, 8)])
    assert can_join([one, other], [True, True])
    assert not can_join([one, part([array(64, 8)], [array(16, 8)])], [True, True])  # over what the first one reads
    assert not can_join([one, part([array(80, 8)], [array(128, 8)])], [True, True])  # not all of what is handed on
    assert not can_join([one, part([array(256, 8)], [array(64, 8)])], [True, True])  # both write the same
    assert can_join([part([array(0, 8)], [array(0, 8)]), other], [True, True])  # in place of an operand
