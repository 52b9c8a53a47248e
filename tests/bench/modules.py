"""Models of transformers at their published sizes, with weights that are drawn: for einc by `from_torch`, for others as
torch exports them.

python -m tests.bench.modules NAME TARGET     writes the ONNX model
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

from einc.importers.pytorch.importing import from_torch
from einc_runtime.dtypes import Array
from tests.support.tiny_models import randomize

Inputs = dict[str, torch.Tensor]

IMAGES, SECONDS, WORDS = 8, 30, 64
"""Images of a batch; seconds of sound, and the words that are known of it."""
FRAMES_PER_SECOND, BANDS = 100, 80
"""Of the sound as Whisper takes it."""


def _vit_b_16() -> tuple[torch.nn.Module, Inputs]:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000))
    return model, {"pixel_values": torch.randn(IMAGES, 3, 224, 224)}


def _resnet_50() -> tuple[torch.nn.Module, Inputs]:
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return model, {"pixel_values": torch.randn(IMAGES, 3, 224, 224)}


def _whisper_tiny() -> tuple[torch.nn.Module, Inputs]:
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder")
             for name, size in (("layers", 4), ("attention_heads", 6), ("ffn_dim", 1536))}  # fmt: skip
    config = transformers.WhisperConfig(d_model=384, vocab_size=51865, use_cache=False, **sizes)
    sound = torch.randn(1, BANDS, SECONDS * FRAMES_PER_SECOND)
    words = torch.randint(0, config.vocab_size, (1, WORDS))
    return transformers.WhisperForConditionalGeneration(config), {"input_features": sound, "decoder_input_ids": words}


MODULES = {"vit_b_16": _vit_b_16, "resnet_50": _resnet_50, "whisper_tiny": _whisper_tiny}


class WithLogits(torch.nn.Module):
    """A model as a module from its inputs to its logits."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).logits
        return logits


def make_module(name: str) -> tuple[WithLogits, tuple[torch.Tensor, ...]]:
    """The module and its arguments, the same in every process."""
    torch.manual_seed(0)
    model, inputs = MODULES[name]()
    return WithLogits(randomize(model.eval()), tuple(inputs)).eval(), tuple(inputs.values())


def read_inputs(name: str, names: list[str]) -> dict[str, Array]:
    """The arguments by the names that a plan or a file has for them, in the order of the module's."""
    _, arguments = make_module(name)
    return {name: argument.numpy() for name, argument in zip(names, arguments, strict=True)}


def write_text(name: str, folder: Path) -> Path:
    """The text and the weights in a folder; returns the file of the text."""
    module, arguments = make_module(name)
    from_torch(module, arguments, name=name).write(str(folder))
    return folder / "model.ein"


def main(name: str, target: str) -> None:
    module, arguments = make_module(name)
    torch.onnx.export(module, arguments, target, dynamo=True, external_data=False, verbose=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
