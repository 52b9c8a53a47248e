"""PyTorch's own sample inputs (OpInfo) of the operators that einc knows: results on one site and on three are equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from einc.errors import ModelError
from einc.importers.pytorch.aten import ATEN
from tests.support.torch_models import compare

SAMPLES = 2
"""Sample inputs of an operator; each is exported, imported and compiled twice."""

RANDOM_OR_COMPLEX = ("rand", "bernoulli", "dropout", "normal", "complex", "fft", "multinomial", "empty")


def list_operators() -> dict[str, Any]:
    """OpInfos of floats whose operator is in the table, by their names."""
    return {
        f"{info.name}{f' {info.variant_test_name}' if info.variant_test_name else ''}": info
        for info in op_db
        if info.aten_name in ATEN and not any(word in info.name for word in RANDOM_OR_COMPLEX)
    }


OPERATORS = list_operators()


class Applied(torch.nn.Module):
    """An operator whose arguments are all given but its tensors."""

    def __init__(self, operator: Any, leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self.operator, self.leaves, self.structure = operator, leaves, structure

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        (args, kwargs) = tree_unflatten(leaves, self.structure)
        return self.operator(*args, **kwargs)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_sample_inputs(name: str) -> None:
    info = OPERATORS[name]
    dtype = next(dtype for dtype in (torch.float32, torch.int64, torch.bool) if dtype in info.dtypes)
    tried = 0
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or any(tensor.numel() == 0 for tensor in tensors):
            continue
        try:
            compare(Applied(info.op, leaves, structure), tensors, tolerance=5e-5)
        except ModelError:
            continue  # refused with a message; what is not refused must be right
        tried += 1
        if tried == SAMPLES:
            return
    if not tried:
        pytest.skip("einc refuses all samples, or they are empty")
