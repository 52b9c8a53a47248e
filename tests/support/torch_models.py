"""Modules of PyTorch beside what einc computes for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from einc.compiler import compile_model
from einc.importers.pytorch.archive import ExportArchive
from einc.importers.pytorch.convert import convert_archive
from einc.importers.pytorch.importing import TorchModel, from_torch
from einc.options import CompileOptions
from einc_runtime.execution.data.dlpack import as_dlpack
from einc_runtime.execution.session import Session

SITES = (1, 3)
_GENERATOR = torch.Generator().manual_seed(7)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR)


def compare(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    tolerance: float = 2e-5,
    sites: Sequence[int] = SITES,
) -> TorchModel:
    """Imports a module and holds its results to PyTorch's, relative to their largest magnitude."""
    model = from_torch(module.eval(), args, kwargs, dynamic)
    check_model(model, module, args, kwargs, tolerance, sites)
    return model


def import_undecomposed(module: torch.nn.Module, args: Sequence[Any], folder: Path) -> TorchModel:
    """The model of a program that was saved as torch.export made it."""
    path = folder / "module.pt2"
    torch.export.save(torch.export.export(module, tuple(args), strict=False), path)
    with ExportArchive(str(path)) as archive:
        converted = convert_archive(archive, "module")
        weights = {name: archive.read_tensor(name) for name in converted.stored}
    return TorchModel(
        converted.text, {**weights, **converted.weights}, converted.inputs, converted.outputs, converted.notes
    )


def check_model(
    model: TorchModel,
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    tolerance: float = 2e-5,
    sites: Sequence[int] = SITES,
) -> None:
    """Holds the results of a module's model to PyTorch's."""
    with torch.no_grad():
        expected = [t for t in tree_leaves(module(*args, **(kwargs or {}))) if isinstance(t, torch.Tensor)]
    tensors = [t for t in tree_leaves((tuple(args), dict(kwargs or {}))) if isinstance(t, torch.Tensor)]
    assert len(tensors) == len(model.inputs)
    assert len(expected) == len(model.outputs)
    for count in sites:
        options = CompileOptions(machine="host", devices=count, selector="eindecomp")
        with Session(compile_model(model.text, "model.ein", options).bundle, backend="cpu") as session:
            session.load_weights(model.weights)
            known = {tensor.name for tensor in session.inputs}
            results = session.run({n: t for n, t in zip(model.inputs, tensors, strict=True) if n in known})
        for name, reference in zip(model.outputs, expected, strict=True):
            check_result(torch.from_dlpack(as_dlpack(results[name])), reference, tolerance, f"{name} on {count} sites")


def check_result(result: torch.Tensor, expected: torch.Tensor, tolerance: float, about: str) -> None:
    assert tuple(result.shape) == tuple(expected.shape), about
    computed, exact = (t.detach().to(torch.float64).numpy() for t in (result, expected))
    if not expected.dtype.is_floating_point:
        np.testing.assert_array_equal(computed, exact, about)
        return
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(computed[~finite], exact[~finite], about)
    scale = np.abs(exact[finite]).max(initial=1e-3)
    assert np.abs(computed[finite] - exact[finite]).max(initial=0) <= tolerance * scale, about
