"""A model text with its weights, from an archive or from a module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from einc.importers.pytorch.archive import Elements, ExportArchive
from einc.importers.pytorch.convert import ConvertedModule, TextNames, convert_archive
from einc.importers.pytorch.exporting import JOINED_MODULE, export_module, join_loss
from einc.importers.weight_files import TEXT_FILE, WEIGHT_FILE, WeightToWrite, describe_weight, write_weights
from einc_runtime.disk import write_file
from einc_runtime.text import format_count, format_memory


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module as a model text. `weights` are by the names that follow `from` in the text, or by their own.

    `inputs` and `outputs` are the names of the text, in the order of the module's tensors. `parameters` are the
    names, in the module, of the parameters that have gradients: what a training step changes. Buffers are not among
    them.
    """

    text: str
    weights: Mapping[str, Elements]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    parameters: tuple[str, ...] = ()

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
        """Writes `model.ein` and `model.safetensors` into a folder, which is made where it is missing."""
        os.makedirs(folder, exist_ok=True)
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

    The module is put into eval mode. Dimensions that are dynamic become dims of the text. With `loss`, the model has
    one output, `loss`: what that function of torch makes of the module's result and of `targets`, which are further
    inputs, as in `torch.nn.functional.cross_entropy(result, target)`. Raises MissingFault without torch, and ModelError
    for what cannot be exported, or computes what einc cannot say.
    """
    named = module.named_parameters(remove_duplicate=False)  # a weight of several names is stored under one of them
    trained = {key for key, value in named if value.requires_grad}
    name, names = name or type(module).__name__, TextNames(outputs=("loss",)) if loss is not None else None
    if loss is not None:
        module, args = join_loss(module, loss, len(args)), (*args, *targets)
    with tempfile.TemporaryDirectory(prefix="einc-") as folder:
        path = os.path.join(folder, "module.pt2")
        export_module(module, args, kwargs, dynamic_shapes, path)
        with ExportArchive(path, "the module") as archive:
            converted = convert_archive(archive, name, names)
            weights = {stored: archive.read_tensor(stored) for stored in converted.stored}
    text, weights = converted.text, {**weights, **converted.weights}
    if loss is not None:  # the module's weights keep the names that they have in it
        text = text.replace(f'from "{JOINED_MODULE}.', 'from "')
        weights = {key.removeprefix(f"{JOINED_MODULE}."): array for key, array in weights.items()}
    parameters = tuple(sorted(trained))
    return TorchModel(text, weights, converted.inputs, converted.outputs, converted.notes, parameters)


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
