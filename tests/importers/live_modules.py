"""PyTorch's own sample inputs (ModuleInfo) of the modules of `torch.nn`: results on three sites are equal.

`data/torch_modules.json` has for each module that it is equal, or why not. `-m slow` tries all that are equal. `python
-m tests.importers.live_modules` tries modules, or all, and writes down what became of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db

from tests.support.torch_models import SITES, compare
from tests.support.trials import Check, Table, fill_table, list_equal

TABLE = Path(__file__).parent / "data" / "torch_modules.json"
RESULTS: Table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
TRIED = 2
"""Sample inputs of a module that are compared."""
TOLERANCE = 5e-5
"""Relative to the largest element: some roundings of f32, and sums in another order."""
MODULES = {info.name: info for info in module_db}


class WithKeywords(torch.nn.Module):
    """A module whose arguments are all given by position, first those with the names of `keywords`."""

    def __init__(self, module: torch.nn.Module, keywords: Mapping[str, Any]) -> None:
        super().__init__()
        self.module, self.keywords = module, keywords
        self.names = [name for name, value in keywords.items() if isinstance(value, torch.Tensor)]

    def forward(self, *tensors: Any) -> Any:
        named = dict(zip(self.names, tensors, strict=False))
        return self.module(*tensors[len(named) :], **{**self.keywords, **named})


def hold_samples(name: str) -> None:
    info, compared = MODULES[name], 0
    torch.manual_seed(0)
    for sample in info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False):
        if sample.forward_input is None or compared == TRIED:
            continue
        made = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        module = WithKeywords(made, sample.forward_input.kwargs).eval()
        tensors = [sample.forward_input.kwargs[keyword] for keyword in module.names]
        tensors += sample.forward_input.args
        module(*tensors)  # a lazy module knows its weights then
        compare(module, tensors, tolerance=TOLERANCE, sites=SITES[-1:])
        compared += 1
    assert compared


CHECKS: dict[str, Check] = {"float32": hold_samples}


@pytest.mark.parametrize("name", list_equal(RESULTS, "float32")[::8])
def test_some_modules(name: str) -> None:
    hold_samples(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_equal(RESULTS, "float32"))
def test_all_modules(name: str) -> None:
    hold_samples(name)


if __name__ == "__main__":
    fill_table(TABLE, sys.argv[1:] or sorted(MODULES), CHECKS)
