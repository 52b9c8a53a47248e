"""A model text with its weights, from an archive or from a module."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from einc.errors import Diagnostic, ModelError, ModelWarning, warn_user
from einc.importers.pytorch.archive import Elements, ExportArchive
from einc.importers.pytorch.convert import ConvertedModule, TextNames, convert_archive
from einc.importers.pytorch.exporting import JOINED_MODULE, export_module, join_loss
from einc.importers.weight_files import TEXT_FILE, WEIGHT_FILE, WeightToWrite, describe_weight, write_weights
from einc_runtime.disk import make_directory, write_file
from einc_runtime.text import format_count, format_memory


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module as a model text. `weights` are by the names that follow `from` in the text, or by their own.

    `inputs` and `outputs` are the names of the text, in the order of the module's tensors. `parameters` are the
    names, in the module, of the parameters that have gradients: what a training step changes. Buffers are not among
    them. `dims` are the dynamic dimensions, each with its largest extent, if it has one.
    """

    text: str
    weights: Mapping[str, Elements]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    dims: Mapping[str, int | None] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Without the weights, which may be of gigabytes; `print` shows the text."""
        weights = f"{format_count(len(self.weights), 'weight')} of {format_memory(self._weight_bytes)}"
        return f"<TorchModel: inputs {', '.join(self.inputs)}; {weights}; outputs {', '.join(self.outputs)}>"

    @property
    def _weight_bytes(self) -> int:
        return sum(describe_weight(name, array).bytes for name, array in self.weights.items())

    def write(self, folder: str) -> None:
        """Writes `model.ein` and `model.safetensors` into a folder, which is made where it is missing.

        Raises WriteFault.
        """
        make_directory(folder)
        described = [describe_weight(name, array) for name, array in self.weights.items()]
        write_file(os.path.join(folder, WEIGHT_FILE), lambda stream: write_weights(stream, described))
        write_file(os.path.join(folder, TEXT_FILE), lambda stream: stream.write(self.text.encode()))


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
    *,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
) -> TorchModel:
    """The model of a module of torch, exported for these arguments as by `torch.export.export`.

    The module is read as in eval mode, with a ModelWarning where that changes what it computes. Dimensions that are
    dynamic become dims of the text, called as their `Dim`, with a ModelWarning for those that torch makes constant;
    outputs have the keys or fields of a record that the module returns, else numbers. With `loss`, the model has one
    output, `loss`: what that function of torch makes of the module's result and of `targets`, which are further inputs,
    as in `torch.nn.functional.cross_entropy(result, target)`. Raises MissingFault without torch, and ModelError for
    what cannot be exported, or computes what einc cannot say.
    """
    _require_elements(module)
    named = module.named_parameters(remove_duplicate=False)  # a weight of several names is stored under one of them
    trained = {key for key, value in named if value.requires_grad}
    name = name or type(module).__name__
    _warn_of_training(module)
    dims = name_dims(module, args, kwargs, dynamic_shapes)
    if loss is not None:
        module = join_loss(module, loss, len(args), list(kwargs or {}), len(targets))
        args = (*args, *targets)
    with tempfile.TemporaryDirectory(prefix="einc-") as folder:
        path = os.path.join(folder, "module.pt2")
        exported = export_module(module, args, kwargs, dynamic_shapes, path)
        for constant in exported.constants:
            warn_user(str(constant), ModelWarning)
        names = TextNames(outputs=("loss",) if loss is not None else exported.results, dims=dims)
        with ExportArchive(path, "the module") as archive:
            converted = convert_archive(archive, name, names)
            weights = {stored: archive.read_tensor(stored) for stored in converted.stored}
    text, weights = converted.text, {**weights, **converted.weights}
    if loss is not None:  # the module's weights keep the names that they have in it
        text = text.replace(f'from "{JOINED_MODULE}.', 'from "')
        weights = {key.removeprefix(f"{JOINED_MODULE}."): array for key, array in weights.items()}
    parameters = tuple(sorted(trained))
    return TorchModel(text, weights, converted.inputs, converted.outputs, converted.notes, parameters, converted.dims)


def _require_elements(module: Any) -> None:
    """Raises ModelError for a module on the meta device, whose weights have shapes and no elements."""
    empty = [name for name, weight in (*module.named_parameters(), *module.named_buffers()) if weight.is_meta]
    if empty:
        count = format_count(len(empty), "weight")
        problem = f"the module is on the meta device: {count} have no elements, {empty[0]} for one"
        hint = "build it on the CPU, without torch.device('meta'), and load its weights: load_state_dict(...)"
        raise ModelError([Diagnostic(problem, hint=hint)])


def _warn_of_training(module: Any) -> None:
    """Warns of parts that compute something else in training than in eval mode, if the module is in training mode."""
    parts = {type(part).__name__ for part in module.modules() if part.training and _trains_otherwise(part)}
    if parts:
        message = (
            f"the module is in training mode, and is read as in eval mode ({', '.join(sorted(parts))}): dropout does "
            "nothing, and norms over batches use the statistics that they have; call eval() to say so"
        )
        warn_user(message, ModelWarning)


def _trains_otherwise(part: Any) -> bool:
    """Whether a module drops elements at random, or uses the statistics of a batch, where it is trained."""
    return ("Dropout" in type(part).__name__ and bool(getattr(part, "p", 0))) or (
        getattr(part, "track_running_stats", False) and hasattr(part, "running_mean")
    )


def list_weights(archive: ExportArchive, converted: ConvertedModule) -> list[WeightToWrite]:
    """All weights of an archive's text, which are read one by one as they are written."""

    def reader(name: str) -> Callable[[], Elements]:
        return lambda: archive.read_tensor(name)

    stored = [
        WeightToWrite(name, archive.tensors[name].type.carrier, archive.tensors[name].shape, reader(name))
        for name in converted.stored
    ]
    return stored + [describe_weight(name, array) for name, array in converted.weights.items()]


def write_weight_file(stream: BinaryIO, archive: ExportArchive, converted: ConvertedModule) -> None:
    write_weights(stream, list_weights(archive, converted))


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
