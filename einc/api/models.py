"""`einc.compile`: a plan of a model text, a file, a module of torch or a graph."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from einc.api.arguments import PlanningOptions, read_dtype
from einc.api.compiling import compileGraph, read_options, warn_of_assumptions
from einc.api.graph import Graph
from einc.api.plan import Plan, Weights
from einc.errors import ModelWarning, UsageError, warn_user

if TYPE_CHECKING:
    from einc.importers.pytorch.importing import TorchModel


def compile(
    model: str | os.PathLike[str] | Graph | TorchModel | Any,
    machine: str | None = None,
    devices: Sequence[int] | int | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    params: Mapping[str, Any] | None = None,
    preset: str | None = None,
    dtype: Any = None,
    weights: Weights | None = None,
    **options: Unpack[PlanningOptions],
) -> Plan:
    """Plan a model for a machine, and return the plan, which runs, explains and proves itself.

    `model` is the path of a model text, a text itself (anything with more than one line), a graph of `createGraph`,
    what `from_torch` returns, or a module of torch, which is exported for `args`, `kwargs` and `dynamic_shapes` as by
    `torch.export.export`. `params` replace params and dims of a text, `preset` applies one of its presets, and `dtype`
    (a name, or a type of numpy or torch) replaces its floating types. `weights` are what `plan.loadWeights` takes;
    those of a module are its own. `machine`, `devices` and `options` are those of `compileGraph`.

    Raises ModelError for a model with mistakes, UsageError for options that do not exist, MachineError for a machine
    that does not, CapacityError for a model that does not fit, MissingFault for a module where torch is not installed.
    """
    dtype = None if dtype is None else read_dtype(dtype).value
    if isinstance(model, Graph):
        for name, value in (("params", params), ("preset", preset), ("dtype", dtype)):
            if value is not None:
                raise UsageError(f"{name} is for model texts, and this model is a graph")
        plan = compileGraph(model, devices, machine=machine, **options)  # type: ignore[misc]  # options of texts are refused there
        return plan if weights is None else plan.loadWeights(weights)
    text, file, stored, parameters = _read_model(model, args, kwargs, dynamic_shapes, params or {})
    definitions = tuple((name, _write_value(value)) for name, value in (params or {}).items())
    if parameters and options.get("train") is not None and options.get("gradients") is None:
        from einc.frontend import build

        tensors = build(text, file, definitions, preset, dtype).tensors
        options["gradients"] = [
            t.name for t in tensors if t.kind.value == "weight" and (t.stored or t.name).split("[")[0] in parameters
        ]
    chosen, proposers = read_options(
        "compile",
        devices,
        {"machine": machine, "preset": preset, "dtype": dtype, "definitions": definitions, **options},
    )
    from einc.compiler import compile_model

    compiled = compile_model(text, file, chosen, proposers=proposers)
    warn_of_assumptions(compiled)
    shapes = {name: tuple(array.shape) for name, array in stored.items()} if isinstance(stored, Mapping) else {}
    plan = Plan(compiled.bundle, tuple(compiled.proposals), compiled.graph, shapes)
    known_weights = stored if weights is None else weights
    return plan if known_weights is None else plan.loadWeights(known_weights)


_GENERATED_TEXT = "einc.from_torch(...).text"
"""What messages call the text that is made of a module: where its lines can be read."""


def _read_model(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, params: Mapping[str, Any]
) -> tuple[str, str, Weights | None, tuple[str, ...]]:
    """The text of a model, the name that messages give it, and its weights and parameters where they come with it."""
    from einc.importers.pytorch.importing import TorchModel, from_torch

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        model = from_torch(model, args, kwargs, dynamic_shapes)
        if open_dims := [name for name in model.dims if name not in params]:
            values = ", ".join(f"{name!r}: ..." for name in open_dims)
            message = f"the plan is for the extents of args; params={{{values}}} plans for others, one plan for each"
            warn_user(message, ModelWarning)
    if isinstance(model, TorchModel):
        for name, largest in model.dims.items():
            if largest is not None and isinstance(params.get(name), int) and params[name] > largest:
                raise UsageError(f"{name} is {params[name]}, and at most {largest} in what was exported")
        return model.text, _GENERATED_TEXT, model.weights, model.parameters
    if isinstance(model, str) and "\n" in model:
        return model, "model.ein", None, ()
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.exists():
            raise UsageError("there is no such file", where=str(path), hint="a model text has more than one line")
        return path.read_text(encoding="utf-8"), str(path), None, ()
    raise UsageError(
        f"a model is a path, a text, a graph of createGraph or a module of torch, not a {type(model).__name__}"
    )


def _write_value(value: Any) -> str:
    """A param's value as the language writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, int | float):
        return repr(value)
    raise UsageError(f"a param is a number, a boolean, a string or a list of these, not {value!r:.80}")
