"""What the dynamic dimensions of a module's inputs are called: as the `Dim` objects that `torch.export` gets."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def name_dims(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> dict[str, tuple[str, int]]:
    """The names and extents of dimensions by the input and the axis, `ids_dim0`: those whose `Dim` has a name that no
    argument has. Arguments that do not fit are left to `torch.export`, which says why."""
    if not dynamic_shapes:
        return {}
    try:
        bound = inspect.signature(module.forward).bind(*args, **(kwargs or {})).arguments
    except TypeError:
        return {}
    specs = dynamic_shapes if isinstance(dynamic_shapes, Mapping) else dict(zip(bound, dynamic_shapes, strict=False))
    dims = {key: dim for name, value in bound.items() for key, dim in _find_dims(name, value, specs.get(name))}
    return {key: (name, extent) for key, (name, extent) in dims.items() if name.isidentifier() and name not in bound}


def _find_dims(path: str, value: Any, spec: Any) -> Iterator[tuple[str, tuple[str, int]]]:
    """The named dimensions of a tensor, or of the tensors in a list or a table, each with its extent."""
    if hasattr(value, "shape"):
        axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for axis, dim in axes:
            name = getattr(dim, "__name__", None)
            if isinstance(name, str):
                yield f"{path}_dim{axis}", (name, int(value.shape[axis]))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _find_dims(f"{path}_{key}", item, spec.get(key) if isinstance(spec, Mapping) else None)
    elif isinstance(value, list | tuple):
        for k, item in enumerate(value):
            fits = isinstance(spec, list | tuple) and k < len(spec)
            yield from _find_dims(f"{path}_{k}", item, spec[k] if fits else None)
