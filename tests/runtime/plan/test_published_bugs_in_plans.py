"""Bugs of distributed training and inference that others published, rebuilt in a plan: the proof refuses each.

The sources are those of docs/msccl.md; the plan sums over three sites, and uses the memory of its parts again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec
import pytest

from einc.compiler import compile_model
from einc.logical.pins import parse_pin
from einc.options import CompileOptions
from einc_runtime.errors import PlanFault
from einc_runtime.plan.proof import prove
from einc_runtime.plan.schema import AggregateTask, Bundle, FenceTask, KernelTask, Task, TransferTask

MODEL = """
model m
dim i = 4
dim k = 12
dim j = 3
input x : f32[i, k]
weight w : f32[k, j]
y[i, j] = x[i, k] * w[k, j]
z = relu(y)
u[i] = sum[j](z[i, j])
output y, u
"""


@functools.cache
def summed_over_three_sites() -> Bundle:
    pins = (parse_pin("y=k/3"), parse_pin("z=i/3"), parse_pin("u=i/3"))
    options = CompileOptions(machine="host", devices=3, selector="eindecomp", schedule="naive", pins=pins)
    return compile_model(MODEL, "m.ein", options).bundle


def find(bundle: Bundle, kind: type[Task], site: int, serves: str = "z") -> int:
    """The position of the first task of a kind that serves an operator on a site."""
    return next(n for n, t in enumerate(bundle.tasks) if type(t) is kind and (t.site, t.serves) == (site, serves))


def change(bundle: Bundle, position: int, **fields: object) -> Bundle:
    tasks = list(bundle.tasks)
    tasks[position] = msgspec.structs.replace(tasks[position], **fields)
    return msgspec.structs.replace(bundle, tasks=tuple(tasks))


def writer_of(bundle: Bundle, buffer: int) -> int:
    return next(n for n, t in enumerate(bundle.tasks) if isinstance(t, TransferTask) and t.write.buffer == buffer)


def counted_twice(bundle: Bundle) -> Bundle:
    position = find(bundle, AggregateTask, 0)
    accumulator, first, _ = bundle.tasks[position].reads  # type: ignore[union-attr]
    return change(bundle, position, reads=(accumulator, first, first))


def lost_shard(bundle: Bundle) -> Bundle:
    position = find(bundle, AggregateTask, 0)
    return change(bundle, position, reads=bundle.tasks[position].reads[:2])  # type: ignore[union-attr]


def wrong_group(bundle: Bundle) -> Bundle:
    """What should come from site 2 comes from site 1 once more."""
    _, first, second = bundle.tasks[find(bundle, AggregateTask, 0)].reads  # type: ignore[union-attr]
    right, wrong = (bundle.tasks[writer_of(bundle, region.buffer)] for region in (first, second))
    assert isinstance(right, TransferTask)
    position = writer_of(bundle, second.buffer)
    assert wrong.site != right.site
    return change(bundle, position, site=right.site, read=right.read, after=right.after)


def missing_wait(bundle: Bundle) -> Bundle:
    position = find(bundle, AggregateTask, 0)
    region = bundle.tasks[position].reads[1]  # type: ignore[union-attr]
    dropped = writer_of(bundle, region.buffer)
    return change(bundle, position, after=tuple(n for n in bundle.tasks[position].after if n != dropped))


def overwritten_in_flight(bundle: Bundle) -> Bundle:
    """A kernel writes where a transfer to another site still reads."""
    position = find(bundle, KernelTask, 0)
    task = bundle.tasks[position]
    sent = [n for n in task.after if isinstance(bundle.tasks[n], TransferTask)]
    assert sent, "the kernel's result takes the place of what was sent"
    return change(bundle, position, after=tuple(n for n in task.after if n != sent[0]))


def shared_scratch(bundle: Bundle) -> Bundle:
    _, first, second = bundle.tasks[find(bundle, AggregateTask, 0)].reads  # type: ignore[union-attr]
    buffers = list(bundle.buffers)
    buffers[second.buffer] = msgspec.structs.replace(buffers[second.buffer], offset=buffers[first.buffer].offset)
    return msgspec.structs.replace(bundle, buffers=tuple(buffers))


def unreduced(bundle: Bundle) -> Bundle:
    """A kernel reads its site's own part in place of the sum."""
    part = bundle.tasks[find(bundle, AggregateTask, 0)].reads[0]  # type: ignore[union-attr]
    return change(bundle, find(bundle, KernelTask, 0), reads=(part,))


def one_rank_leaves(bundle: Bundle) -> Bundle:
    """A site does not send its block of the output home."""
    position = find(bundle, TransferTask, 1, "y")
    tasks = list(bundle.tasks)
    tasks[position] = FenceTask(1, "y", tasks[position].after)
    return msgspec.structs.replace(bundle, tasks=tuple(tasks))


def waits_for_each_other(bundle: Bundle) -> Bundle:
    position = find(bundle, TransferTask, 1)
    return change(bundle, position, after=(*bundle.tasks[position].after, find(bundle, AggregateTask, 0)))


def early_output(bundle: Bundle) -> Bundle:
    """A block is sent home before it is summed up."""
    part = bundle.tasks[find(bundle, AggregateTask, 1)].reads  # type: ignore[union-attr]
    partial = next(region for region in part if bundle.buffers[region.buffer].block != region.block)
    position = find(bundle, TransferTask, 1, "y")
    return change(bundle, position, read=partial)


@pytest.mark.parametrize(
    ("build", "source"),
    [
        (counted_twice, "huggingface/transformers#18330"),
        (lost_shard, "bigcode-project/Megatron-LM#11"),
        (wrong_group, "ByteDance-Seed/VeOmni#1115"),
        (missing_wait, "pytorch/pytorch#73314"),
        (overwritten_in_flight, "jax-ml/jax#40830"),
        (shared_scratch, "vllm-project/vllm#25892"),
        (unreduced, "NovaSky-AI/SkyRL#1886"),
        (early_output, "openxla/xla#42481"),
        (one_rank_leaves, "NVIDIA/cuDecomp#158"),
        (waits_for_each_other, "meta-pytorch/torchrec#4149"),
    ],
)
def test_published_bugs_are_refused_in_plans(build: Callable[[Bundle], Bundle], source: str) -> None:
    bundle = summed_over_three_sites()
    prove(bundle)
    broken = build(bundle)
    assert broken != bundle
    with pytest.raises(PlanFault) as caught:
        prove(broken)
    assert "task" in str(caught.value.where) or "output" in str(caught.value.where), source
