"""Operations with other kernels, operands or attributes than their families have are refused when a plan is read."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.plan.codec import decode, encode
from einc_runtime.plan.schema import Bundle
from einc_runtime.plan.validation import validate
from tests.support.compiled_plans import TRANSFORMER, compiled


@functools.cache
def plan() -> Bundle:
    return compiled(f"model t\n{TRANSFORMER}output flat = reshape(l, places = 13 * 12)\n", 1)


LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    # the kernel of the operation that is changed, its fields, a piece of the message with the part that is named
    "no kernel": ("rope", {"kernel": "no such kernel"}, ".kernel: no such kernel, where rope with"),
    "no text": ("rope", {"kernel": "\x1b"}, ".kernel: "),
    "no family": ("rope", {"family": "ropes"}, ".family: there is no operator family 'ropes'"),
    "other outputs": ("contract", {"kernel": "topk"}, ".kernel: topk, where equation"),
}  # fmt: skip

ATTRIBUTES: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("rope", {"speed": 1.0}, "['speed']: 1.0, where rope with its attributes has nothing"),
    "for no attributes": ("reshape", {"axis": 0}, "['axis']: 0, where reshape with its attributes has nothing"),
    "an integer": ("rmsnorm", {"eps": 1}, "['eps']: 1, where rows with its attributes has 1e-06"),
    "a text": ("append", {"new_lens": "13"}, "['new_lens']: '13', where append with its attributes has [6, 7]"),
}


def with_fields(kernel: str, /, **fields: Any) -> tuple[int, Bundle]:
    operations = list(plan().operations)
    at = next(i for i, operation in enumerate(operations) if operation.kernel == kernel)
    operations[at] = msgspec.structs.replace(operations[at], **fields)
    return at, msgspec.structs.replace(plan(), operations=tuple(operations))


@pytest.mark.parametrize("fault", LIES)
def test_an_operation_is_refused_that_its_family_does_not_have(fault: str) -> None:
    kernel, fields, message = LIES[fault]
    at, lie = with_fields(kernel, **fields)
    with pytest.raises(PlanFault) as caught:
        validate(lie)
    assert caught.value.render().startswith(f"operations[{at}]")
    assert message in caught.value.render()


@pytest.mark.parametrize("fault", ATTRIBUTES)
def test_an_attribute_is_refused_that_the_kernel_does_not_have(fault: str) -> None:
    kernel, attributes, message = ATTRIBUTES[fault]
    known = next(operation for operation in plan().operations if operation.kernel == kernel).kernel_attributes
    at, lie = with_fields(kernel, kernel_attributes={**known, **attributes})
    with pytest.raises(PlanFault) as caught:
        decode(encode(lie))
    assert f"operations[{at}].kernel_attributes{message}" in caught.value.render()


def test_an_attribute_that_is_missing_is_named() -> None:
    at, lie = with_fields("rope", kernel_attributes={"theta": 10000.0})
    with pytest.raises(PlanFault) as caught:
        decode(encode(lie))
    assert caught.value.render().startswith(f"operations[{at}].kernel_attributes['scaling']: nothing, where rope")
