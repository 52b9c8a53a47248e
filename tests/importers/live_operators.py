"""PyTorch's own sample inputs (OpInfo) of the operators that einc knows: results on one site and on three are equal.

`data/torch_operators.json` has for each operator and type of floats that they are equal, or why not: what einc
refuses, with its message. `-m slow` tries all that are equal. `python -m tests.importers.live_operators` tries
operators, or all, and writes down what became of them.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from einc.errors import ModelError, ReadError
from einc.importers.pytorch.aten import ATEN
from tests.support.torch_models import SITES, compare
from tests.support.trials import Check, Table, fill_table, list_equal

TABLE = Path(__file__).parent / "data" / "torch_operators.json"
RESULTS: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
TRIED, TAKEN = 10, 1
"""Sample inputs of an operator that are tried at most, and compared; each is exported, imported and compiled."""

RANDOM_OR_COMPLEX = ("rand", "bernoulli", "dropout", "normal", "complex", "polar", "fft", "multinomial", "empty")
"""Parts of names of operators whose results are random, complex, or any."""

OF_ANY_ORDER = ("argsort", "sort")
"""Operators whose results are positions, of which PyTorch puts those of equal elements in any order."""

TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-11, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Relative to the largest element: a few roundings of the type, and for f32 sums in another order."""


def list_operators() -> dict[str, Any]:
    """OpInfos whose operator is in the table, by their names."""
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


def list_samples(info: Any, dtype: torch.dtype) -> Iterator[tuple[Applied, list[torch.Tensor]]]:
    """The first samples that have elements."""
    kept = 0
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        leaves, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if info.name in OF_ANY_ORDER and any(tensor.unique().numel() < tensor.numel() for tensor in tensors):
            continue
        module = Applied(info.op, leaves, structure)
        results = tensors or [leaf for leaf in tree_flatten(module())[0] if isinstance(leaf, torch.Tensor)]
        if all(tensor.numel() for tensor in results):
            yield module, tensors
            kept += 1
            if kept == TRIED:
                return


def hold_samples(dtype: torch.dtype, name: str) -> None:
    """Raises the last refusal if einc refuses all samples; what it does not refuse must be right."""
    info = OPERATORS[name]
    if dtype not in info.dtypes:
        dtype = next((known for known in (torch.int64, torch.bool) if known in info.dtypes), dtype)
    if dtype not in info.dtypes:
        raise ValueError("PyTorch computes it for no such type on a CPU")
    compared, refused = 0, None
    for module, tensors in list_samples(info, dtype):
        try:
            sites = SITES if dtype is torch.float32 else SITES[-1:]
            compare(module, tensors, tolerance=TOLERANCES.get(dtype, 0.0), sites=sites)
        except (ModelError, ReadError) as error:
            refused = error
            continue
        compared += 1
        if compared == TAKEN:
            return
    if not compared:
        raise refused or ValueError("no sample has elements")


CHECKS: dict[str, Check] = {str(dtype)[6:]: functools.partial(hold_samples, dtype) for dtype in TOLERANCES}
EQUAL = [(name, check) for check in CHECKS for name in list_equal(RESULTS, check)]


@pytest.mark.parametrize("name", list_equal(RESULTS, "float32")[::5])
def test_some_operators(name: str) -> None:
    CHECKS["float32"](name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), EQUAL)
def test_all_operators(name: str, check: str) -> None:
    CHECKS[check](name)


if __name__ == "__main__":
    fill_table(TABLE, sys.argv[1:] or sorted(OPERATORS), CHECKS)
