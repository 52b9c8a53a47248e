"""Invalid invocations, for which kernels of the CPU and of GPUs raise the same error: too many or too few operands,
attributes that are unknown, missing or of another type, and elements of another type."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einc_runtime.errors import PlanFault
from einc_runtime.kernels import registry
from einc_runtime.kernels.triton import builders
from einc_runtime.kernels.triton.launches import as_layout
from tests.support.gpu_invocations import INVOCATIONS

OPTIONAL = {("rope", "seq_lens"), ("contract", "scale"), ("rmsnorm", "offset"), ("attention", "softcap")}


def refusals(invocation):
    """The error messages of both, on arrays that must not be read."""
    views = ([as_layout(x) for x in arrays] for arrays in (invocation.inputs, invocation.outputs))
    seen = invocation.on(*views)
    for refuse in (registry.prepare, builders.build_kernel):
        with pytest.raises(PlanFault) as caught:
            refuse(seen)
        yield caught.value.message


def spoilt(invocation):
    inputs, outputs, attributes = list(invocation.inputs), list(invocation.outputs), invocation.attributes
    blocks = {"input_blocks": [*invocation.input_blocks, *invocation.input_blocks[:1]],
              "output_blocks": [*invocation.output_blocks, *invocation.output_blocks[:1]]}  # fmt: skip
    yield "an input more", replace(invocation, inputs=[*inputs, inputs[0]], **blocks)
    yield "an output more", replace(invocation, outputs=[*outputs, outputs[0]], **blocks)
    yield "no inputs", replace(invocation, inputs=[])
    yield "no outputs", replace(invocation, outputs=[])
    yield "truth", replace(invocation, outputs=[replace(output, dtype="bool") for output in outputs])
    yield "a stranger", replace(invocation, attributes={**attributes, "colour": 1})
    for name, value in attributes.items():
        if (invocation.name, name) not in OPTIONAL:
            yield f"no {name}", replace(invocation, attributes={k: v for k, v in attributes.items() if k != name})
        other = "red" if not isinstance(value, str) else 7
        yield f"another {name}", replace(invocation, attributes={**attributes, name: other})


@pytest.mark.parametrize("case", INVOCATIONS)
def test_cpu_and_gpu_refuse_invalid_invocations_alike(case):
    for what, invocation in spoilt(INVOCATIONS[case].invocation()):
        own, other = refusals(invocation)
        assert own == other, what
        if what == "a stranger":
            assert "attribute 'colour'" in own
        if what.startswith(("no ", "another ")) and what.split()[1] in invocation.attributes:
            assert what.split()[1] in own
