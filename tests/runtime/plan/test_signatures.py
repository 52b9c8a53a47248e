"""Operations with kernels that there are not, or with operands or attributes that kernels do not take."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.kernels.registry import PROVIDERS
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.signatures import COMPOSED_KERNELS, SIGNATURES
from einc_runtime.plan.validation import validate
from tests.support.compiled_plans import TRANSFORMER, compiled


@functools.cache
def plan() -> Bundle:
    return compiled(f"model t\n{TRANSFORMER}output flat = reshape(l, places = 13 * 12)\n", 1)


def test_there_is_a_signature_for_every_kernel_of_the_cpu() -> None:
    assert set(SIGNATURES) == set(PROVIDERS["numpy"]) | COMPOSED_KERNELS


LIES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    # the kernel of the operation that is changed, its fields, the part that is named, a piece of the message
    "no kernel": ("rope", {"kernel": "no such kernel"}, ".kernel", "unknown kernel 'no such kernel'"),
    "no text": ("rope", {"kernel": "\x1b"}, ".kernel", "printable"),
    "a gain too few": ("rmsnorm", {"inputs": (0,)}, ".inputs", "1 inputs, where the kernel rmsnorm takes 2 to 2"),
    "more operands": ("rope", {"inputs": (0, 0, 0)}, ".inputs", "3 inputs, where the kernel rope takes 1 to 2"),
    "other outputs": ("contract", {"kernel": "topk", "inputs": (0,)}, ".outputs", "1 outputs, where the kernel"),
    "integers": ("contract", {"kernel": "softmax", "inputs": (0,)}, ".inputs[0]", "no tensor of i64 and 1 dimensions"),
    "a vector of rows": ("append", {"inputs": (0, 0, 0)}, ".inputs[0]", "no tensor of i64 and 1 dimensions"),
}  # fmt: skip

ATTRIBUTES: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("rope", {"speed": 1.0}, "['speed']: the kernel rope takes theta, scaling, seq_lens"),
    "for no attributes": ("reshape", {"axis": 0}, "['axis']: the kernel reshape takes no attributes"),
    "an integer": ("rmsnorm", {"eps": 1}, "['eps']: int, where the kernel takes float"),
    "a text": ("append", {"new_lens": "13"}, "['new_lens']: str, where the kernel takes list"),
}


def with_fields(kernel: str, /, **fields: Any) -> tuple[int, Bundle]:
    operations = list(plan().operations)
    at = next(i for i, operation in enumerate(operations) if operation.kernel == kernel)
    operations[at] = msgspec.structs.replace(operations[at], **fields)
    return at, msgspec.structs.replace(plan(), operations=tuple(operations))


@pytest.mark.parametrize("what", LIES)
def test_a_kernel_is_refused_that_the_operation_cannot_have(what: str) -> None:
    kernel, fields, where, message = LIES[what]
    at, lie = with_fields(kernel, **fields)
    with pytest.raises(PlanFault) as caught:
        validate(lie)
    assert caught.value.render().startswith(f"operations[{at}]{where}: ")
    assert message in caught.value.render()


@pytest.mark.parametrize("what", ATTRIBUTES)
def test_an_attribute_is_refused_that_the_kernel_does_not_take(what: str) -> None:
    kernel, attributes, message = ATTRIBUTES[what]
    known = next(operation for operation in plan().operations if operation.kernel == kernel).kernel_attributes
    at, lie = with_fields(kernel, kernel_attributes={**known, **attributes})
    with pytest.raises(PlanFault) as caught:
        validate(lie)
    assert f"operations[{at}].kernel_attributes{message}" in caught.value.render()


def test_an_attribute_that_is_missing_is_named() -> None:
    at, lie = with_fields("rope", kernel_attributes={"theta": 2.0})
    with pytest.raises(PlanFault) as caught:
        decode(encode(lie))
    assert caught.value.render() == f"operations[{at}].kernel_attributes: the kernel rope needs scaling"
