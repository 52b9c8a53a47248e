"""Maps that libraries for GPUs may compute within a product: what their epilogues can be, and nothing else."""

import msgspec
import pytest

from einc_runtime.kernels.triton.epilogue import parse_epilogue
from einc_runtime.plan.epilogues import is_library_epilogue
from einc_runtime.plan.schema import Cost, Operation

MAPS = {
    "t0 = add x0 x1": True,
    "t0 = relu x0": True,
    "t0 = gelu_tanh x0": True,
    "t0 = add x0 x1; t1 = add t0 x2; t2 = relu t1": True,
    "t0 = gelu x0": False,
    "t0 = silu x0": False,
    "t0 = add x0 x1; t1 = mul t0 x1": False,
    "t0 = cast:f16 x0": False,
}


def make_operation(kernel: str = "map", **attributes: str | bool) -> Operation:
    return Operation(
        "y", "y", "equation", {}, None, (0,), (1,), ("sum",), (), kernel, dict(attributes), (), Cost(0, 0, 0), (), None
    )


@pytest.mark.parametrize("program", MAPS)
def test_a_map_is_one_if_all_its_functions_are(program):
    assert is_library_epilogue(make_operation(program=program)) is MAPS[program]


@pytest.mark.parametrize("program", MAPS)
def test_what_kernels_take_is_one(program):
    """The compiler leaves room for all that kernels of GPUs can join; for some more, the kernels decline."""
    arity = 1 + max(number for number in range(3) if f"x{number}" in program)
    if any(parse_epilogue(program, arity, position) for position in range(arity)):
        assert is_library_epilogue(make_operation(program=program))


def test_no_other_kernel_and_no_reproducible_map_is_one():
    operation = make_operation(program="t0 = relu x0")
    assert not is_library_epilogue(msgspec.structs.replace(operation, kernel="reduce"))
    assert not is_library_epilogue(make_operation(program="t0 = relu x0", reproducible=True))
