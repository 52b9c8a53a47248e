"""Plans that compute something else than their operations say, and that a proof of data alone accepts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.execution.cpu.executor import CpuExecutor
from einc_runtime.execution.session import Session
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.proof import prove, prove_data
from einc_runtime.plan.schema import Block, Bundle, Operation
from einc_runtime.plan.validation import validate
from tests.support.compiled_plans import compiled

SUM = 'model m\ndim a = 8\ninput x : f32[a]\ny = sum(x, "a")\noutput y'
ROWS = "model m\ndim a = 6\ndim b = 3\ninput x : f32[a, b]\ny = softmax(x)\noutput y"
LAYER = """
model m
dim heads = 4; dim kv = 2; dim tokens = 6; dim d = 4; dim w = 8
input  q : f32[heads, tokens, d]
input  k : f32[kv, tokens, d]
input  v : f32[kv, tokens, d]
input  x : f32[tokens, w]
input  y : f32[tokens, w]
weight gain : f32[w]
o, lse = attention(rope(q, theta=500.0), rope(k, theta=500.0), v, causal=true, scale=0.3)
z = rmsnorm(x - y, gain, eps=0.01)
total[t] = sum[c](z[t, c] * y[t, c] * 0.5)
biggest[t] = max[c](z[t, c])
output o, total, biggest
"""


@functools.cache
def plan(text: str, sites: int) -> Bundle:
    return compiled(text, sites)


def with_operation(bundle: Bundle, at: int, **fields: Any) -> Bundle:
    operations = list(bundle.operations)
    operations[at] = msgspec.structs.replace(operations[at], **fields)
    return msgspec.structs.replace(bundle, operations=tuple(operations))


def fault_of(bundle: Bundle) -> str:
    """The fault in a plan whose data is complete and without races."""
    prove_data(bundle)
    with pytest.raises(PlanFault) as caught:
        validate(bundle)
    return caught.value.render()


def run(bundle: Bundle, **arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with Session(bundle, executor=CpuExecutor(bundle)) as session:
        session.load_all(arrays)
        session.execute()
        return session.offload("y")


def test_a_sum_that_reads_one_half_twice() -> None:
    """The input block of function 1, what its kernel reads and its buffer are those of function 0."""
    bundle = plan(SUM, 2)
    (operation,) = bundle.operations
    half = Block((0,), (4,))
    first, second = operation.functions
    assert (first.inputs, second.inputs) == ((half,), (Block((4,), (8,)),))
    kernels = [i for i, task in enumerate(bundle.tasks) if getattr(task, "function", None) == 1]
    read = bundle.tasks[kernels[0]].reads[0]  # type: ignore[union-attr]
    lie = with_operation(bundle, 0, functions=(first, msgspec.structs.replace(second, inputs=(half,))))
    buffers, tasks = list(lie.buffers), list(lie.tasks)
    buffers[read.buffer] = msgspec.structs.replace(buffers[read.buffer], block=half)
    tasks[kernels[0]] = msgspec.structs.replace(tasks[kernels[0]], reads=(msgspec.structs.replace(read, block=half),))
    lie = msgspec.structs.replace(lie, buffers=tuple(buffers), tasks=tuple(tasks))
    numbers = np.arange(1, 9, dtype="f4")
    assert (run(bundle, x=numbers), run(lie, x=numbers)) == (36, 20)
    assert fault_of(lie) == (
        "operations[0].functions[1].inputs[0] ('y'): [0:4], where its intervals and equation give [4:8]"
    )


def test_rows_of_a_softmax_that_are_exchanged() -> None:
    """Each function writes the rows of the other, in buffers, tasks and regions of the output as well."""
    bundle = plan(ROWS, 2)
    first, second = (function.outputs[0] for function in bundle.operations[0].functions)
    exchanged = {first: second, second: first}
    (tensor,) = bundle.operations[0].outputs

    def swap(part: Any) -> Any:
        """All blocks of the output in a part of a plan."""
        if getattr(part, "tensor", tensor) == tensor and isinstance(getattr(part, "block", None), Block):
            return msgspec.structs.replace(part, block=exchanged[part.block])
        fields = {"writes", "reads", "outputs", "regions"} & set(getattr(part, "__struct_fields__", ()))
        return msgspec.structs.replace(part, **{name: tuple(map(swap, getattr(part, name))) for name in fields})

    functions = tuple(
        msgspec.structs.replace(function, outputs=(exchanged[function.outputs[0]],))
        for function in bundle.operations[0].functions
    )
    lie = with_operation(bundle, 0, functions=functions)
    buffers = tuple(swap(buffer) if buffer.tensor == tensor else buffer for buffer in lie.buffers)
    tasks = tuple(
        msgspec.structs.replace(task, writes=tuple(map(swap, task.writes)))  # type: ignore[union-attr]
        for task in lie.tasks
    )
    lie = msgspec.structs.replace(lie, buffers=buffers, tasks=tasks, outputs=tuple(map(swap, lie.outputs)))
    numbers = np.arange(18, dtype="f4").reshape(6, 3) ** 2
    assert not np.array_equal(run(bundle, x=numbers), run(lie, x=numbers))
    assert "where its intervals and rows give [0:3, 0:3]" in fault_of(lie)


def attribute(name: str, value: Any) -> Callable[[Operation], dict[str, Any]]:
    return lambda operation: {"kernel_attributes": {**operation.kernel_attributes, name: value}}


CHANGES: dict[str, tuple[str, Callable[[Operation], dict[str, Any]]]] = {
    "eps": ("rmsnorm", attribute("eps", 0.02)),
    "eps of another type": ("rmsnorm", attribute("eps", 1)),
    "an offset": ("rmsnorm", attribute("offset", 1.0)),
    "theta": ("rope", attribute("theta", 501.0)),
    "lengths": ("rope", attribute("seq_lens", [2, 4])),
    "causal": ("attention", attribute("causal", False)),
    "causal as a number": ("attention", attribute("causal", 1)),
    "scale": ("attention", attribute("scale", 0.31)),
    "window": ("attention", attribute("window", 3)),
    "scale of a product": ("contract", attribute("scale", 0.25)),
    "operands": ("sub", attribute("program", "t0 = sub x1 x0")),
    "function": ("sub", attribute("program", "t0 = add x0 x1")),
    "aggregation of a kernel": ("max", attribute("aggregation", "min")),
    "aggregation of partial outputs": ("max", lambda operation: {"aggregations": ("min",)}),
    "kernel": ("max", lambda operation: {"kernel": "softmax"}),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_kernel_that_is_not_the_operations(fault: str) -> None:
    title, change = CHANGES[fault]
    bundle = plan(LAYER, 1)
    prove(bundle)
    at = next(i for i, operation in enumerate(bundle.operations) if operation.title.startswith(title))
    lie = with_operation(bundle, at, **change(bundle.operations[at]))
    with pytest.raises(PlanFault) as caught:
        prove(lie)
    assert caught.value.render().startswith(f"operations[{at}].")


def test_operands_of_an_operation_in_another_order() -> None:
    """Both the operation and its task say so: the program still fits, and only the model could tell. With another
    type or shape, the proof tells."""
    bundle = plan(LAYER, 2)
    at = next(i for i, operation in enumerate(bundle.operations) if operation.family == "attention")
    q, k, v = bundle.operations[at].inputs
    with pytest.raises(PlanFault):
        prove(with_operation(bundle, at, inputs=(k, q, v)))


def test_a_family_that_there_is_not() -> None:
    bundle = plan(ROWS, 1)
    with pytest.raises(PlanFault, match="there is no operator family 'softmix'"):
        prove(decode(encode(with_operation(bundle, 0, family="softmix"))))
