"""What tasks read and write, where that lies in memory, and which tasks claimed which bytes: against plain models."""

import random

import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan import regions
from einc_runtime.plan.schema import FenceTask, Region, TransferTask
from tests.support.handmade_plans import box, random_plan, two_site_plan

PLAN = two_site_plan()


@pytest.mark.parametrize("seed", range(4))
def test_users_of_buffers_are_the_tasks_whose_fields_name_them(seed):
    tasks = (*random_plan(seed, sites=3).tasks, FenceTask(0, "v0", ()))
    readers, writers = regions.find_users(tasks)
    for fields, users in ((("reads", "read"), readers), (("writes", "write"), writers)):
        named = [
            (region.buffer, number)
            for number, task in enumerate(tasks)
            for field in fields
            for region in _as_regions(getattr(task, field, ()))
        ]
        assert sorted((buffer, number) for buffer, numbers in users.items() for number in numbers) == sorted(named)
        assert all(numbers == sorted(numbers) for numbers in users.values())
    assert any(isinstance(task, TransferTask) for task in tasks)


def _as_regions(value):
    return (value,) if isinstance(value, Region) else value


def test_outputs_are_taken_from_result_buffers():
    output_buffers = regions.find_output_buffers(PLAN)
    assert output_buffers == {number for number, buffer in enumerate(PLAN.buffers) if buffer.role == "result"}
    assert output_buffers


def test_a_region_lies_in_its_buffer_or_is_refused():
    number = next(n for n, buffer in enumerate(PLAN.buffers) if buffer.block == box((2, 4), (0, 2)))
    inside = Region(number, box((3, 4), (1, 2)))
    assert regions.find_offsets(PLAN, inside) == [(1, 2), (1, 2)]
    assert regions.region_bytes(PLAN, inside) == 4
    start, end = regions.span(PLAN, number)
    assert end - start == regions.buffer_bytes(PLAN, PLAN.buffers[number]) == 2 * 2 * 4
    for outside in (box((1, 3), (0, 2)), box((3, 5), (0, 2)), box((3, 3), (0, 2))):
        with pytest.raises(PlanFault, match="outside its buffer") as caught:
            regions.find_offsets(PLAN, Region(number, outside))
        assert caught.value.where == f"buffers[{number}]"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_belong_to_who_claimed_them_last(seed):
    rng = random.Random(seed)
    owners, plain = regions.ByteOwners(), [None] * 40
    for claim in range(25):
        start = rng.randrange(39)
        end = rng.randint(start + 1, min(40, start + rng.choice([2, 8, 40])))
        previous = owners.claim(start, end, claim)
        pieces = [plain[byte] for byte in range(start, end)]
        runs = [owner for at, owner in enumerate(pieces) if at == 0 or owner != pieces[at - 1]]
        assert list(dict.fromkeys(previous)) == list(dict.fromkeys(owner for owner in runs if owner is not None))
        plain[start:end] = [claim] * (end - start)
